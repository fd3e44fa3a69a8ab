"""Correctors: from hidden states and logits to proposed tokens."""

from specdraft.correctors.base import Correction, CorrectionBatch, Corrector
from specdraft.correctors.candidate_loss import (
    CandidateCrossEntropy,
    CandidateLoss,
    CandidateLossSum,
    CandidateMargin,
    ExpectedRegret,
)
from specdraft.correctors.confidence import Confidence, ConfidenceHead
from specdraft.correctors.dcoco import DCOCO
from specdraft.correctors.domino import DominoCorrector
from specdraft.correctors.full_vocabulary import FullVocabularyCorrector
from specdraft.correctors.lattice import Lattice, LatticeCorrector
from specdraft.correctors.markov import MarkovCorrector
from specdraft.correctors.none import NoCorrector
from specdraft.correctors.selector import SelectorCorrector

__all__ = [
    "DCOCO",
    "CandidateCrossEntropy",
    "CandidateLoss",
    "CandidateLossSum",
    "CandidateMargin",
    "Confidence",
    "ConfidenceHead",
    "Correction",
    "CorrectionBatch",
    "Corrector",
    "DominoCorrector",
    "ExpectedRegret",
    "FullVocabularyCorrector",
    "Lattice",
    "LatticeCorrector",
    "MarkovCorrector",
    "NoCorrector",
    "SelectorCorrector",
]
