"""Objectives: inclusion x weighting x prediction over the slots of a block."""

from specdraft.objectives.acceptance import AcceptanceWeighted, prefix_products, suffix_sums
from specdraft.objectives.anchors import all_anchors, anchor_candidates, sample_anchors
from specdraft.objectives.block_terms import AcceptedLength, BlockTerm
from specdraft.objectives.first_error import FirstError, WeightProduct, slots_behind_first_error
from specdraft.objectives.frozen_head import HeadLoss, default_chunk_size, frozen_head_loss
from specdraft.objectives.horizons import MixedHorizon
from specdraft.objectives.inclusion import FixedHorizon, Inclusion, Layout
from specdraft.objectives.lk_losses import LKHybrid, NegativeLogAcceptance
from specdraft.objectives.objective import Objective, ObjectiveOutput
from specdraft.objectives.prediction import (
    CrossEntropy,
    DraftChunk,
    KLDivergence,
    Prediction,
    TargetChunk,
    TotalVariation,
    WeightedSum,
)
from specdraft.objectives.slot_loss import SlotLoss
from specdraft.objectives.unmasking import IntraBlockUnmasking
from specdraft.objectives.weighting import ExponentialDecay, Scores, Uniform, Weighting, default_gamma, default_gammas

__all__ = [
    "AcceptanceWeighted",
    "AcceptedLength",
    "BlockTerm",
    "CrossEntropy",
    "DraftChunk",
    "ExponentialDecay",
    "FirstError",
    "FixedHorizon",
    "HeadLoss",
    "Inclusion",
    "IntraBlockUnmasking",
    "KLDivergence",
    "LKHybrid",
    "Layout",
    "MixedHorizon",
    "NegativeLogAcceptance",
    "Objective",
    "ObjectiveOutput",
    "Prediction",
    "Scores",
    "SlotLoss",
    "TargetChunk",
    "TotalVariation",
    "Uniform",
    "WeightProduct",
    "WeightedSum",
    "Weighting",
    "all_anchors",
    "anchor_candidates",
    "default_chunk_size",
    "default_gamma",
    "default_gammas",
    "frozen_head_loss",
    "prefix_products",
    "sample_anchors",
    "slots_behind_first_error",
    "suffix_sums",
]
