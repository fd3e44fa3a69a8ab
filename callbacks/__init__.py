"""Callbacks: decoding inside validation, the speed of training, and what a run was made with."""

from specdraft.callbacks.provenance import Provenance
from specdraft.callbacks.speculative_decoding import SpeculativeDecoding
from specdraft.callbacks.training_throughput import TrainingThroughput

__all__ = ["Provenance", "SpeculativeDecoding", "TrainingThroughput"]
