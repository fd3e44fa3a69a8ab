"""Callbacks: decoding in validation, views in TensorBoard, speed of training, facts of a run, a state to go on from."""

from specdraft.callbacks.hparams import HParams
from specdraft.callbacks.provenance import Provenance
from specdraft.callbacks.save_on_sigterm import SaveOnSigterm
from specdraft.callbacks.scalar_layout import ScalarLayout
from specdraft.callbacks.speculative_decoding import SpeculativeDecoding
from specdraft.callbacks.training_throughput import TrainingThroughput

__all__ = ["HParams", "Provenance", "SaveOnSigterm", "ScalarLayout", "SpeculativeDecoding", "TrainingThroughput"]
