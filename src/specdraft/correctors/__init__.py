"""Correctors: from hidden states and logits to proposed tokens."""

from specdraft.correctors.base import Correction, CorrectionBatch, Corrector
from specdraft.correctors.dcoco import DCOCO
from specdraft.correctors.domino import DominoCorrector
from specdraft.correctors.full_vocabulary import FullVocabularyCorrector
from specdraft.correctors.lattice import Lattice, LatticeCorrector
from specdraft.correctors.markov import MarkovCorrector
from specdraft.correctors.none import NoCorrector
from specdraft.correctors.selector import SelectorCorrector

__all__ = [
    "DCOCO",
    "Correction",
    "CorrectionBatch",
    "Corrector",
    "DominoCorrector",
    "FullVocabularyCorrector",
    "Lattice",
    "LatticeCorrector",
    "MarkovCorrector",
    "NoCorrector",
    "SelectorCorrector",
]
