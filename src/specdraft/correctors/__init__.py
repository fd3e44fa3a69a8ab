"""Correctors: from hidden states and logits to proposed tokens."""

from specdraft.correctors.base import Corrector
from specdraft.correctors.none import NoCorrector

__all__ = ["Corrector", "NoCorrector"]
