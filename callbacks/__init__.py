"""Callbacks: decoding inside validation, views of it in TensorBoard, and what a run was made with."""

from specdraft.callbacks.hparams import HParams
from specdraft.callbacks.provenance import Provenance
from specdraft.callbacks.scalar_layout import ScalarLayout
from specdraft.callbacks.speculative_decoding import SpeculativeDecoding

__all__ = ["HParams", "Provenance", "ScalarLayout", "SpeculativeDecoding"]
