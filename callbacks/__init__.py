"""Callbacks: decoding in validation, views of it in TensorBoard, speed of training, and what a run was made with."""

from specdraft.callbacks.hparams import HParams
from specdraft.callbacks.provenance import Provenance
from specdraft.callbacks.scalar_layout import ScalarLayout
from specdraft.callbacks.speculative_decoding import SpeculativeDecoding
from specdraft.callbacks.training_throughput import TrainingThroughput

__all__ = ["HParams", "Provenance", "ScalarLayout", "SpeculativeDecoding", "TrainingThroughput"]
