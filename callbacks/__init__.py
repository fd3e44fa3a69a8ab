"""Callbacks: decoding inside validation, and what a run was made with."""

from specdraft.callbacks.provenance import Provenance
from specdraft.callbacks.speculative_decoding import SpeculativeDecoding

__all__ = ["Provenance", "SpeculativeDecoding"]
