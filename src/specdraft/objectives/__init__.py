"""Objectives: inclusion x weighting x prediction over the slots of a block."""

from specdraft.objectives.anchors import all_anchors, anchor_candidates, sample_anchors
from specdraft.objectives.frozen_head import HeadLoss, default_chunk_size, frozen_head_loss
from specdraft.objectives.inclusion import FixedHorizon, Inclusion, Layout
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
from specdraft.objectives.weighting import ExponentialDecay, Scores, Uniform, Weighting, default_gamma

__all__ = [
    "CrossEntropy",
    "DraftChunk",
    "ExponentialDecay",
    "FixedHorizon",
    "HeadLoss",
    "Inclusion",
    "KLDivergence",
    "Layout",
    "Objective",
    "ObjectiveOutput",
    "Prediction",
    "Scores",
    "SlotLoss",
    "TargetChunk",
    "TotalVariation",
    "Uniform",
    "WeightedSum",
    "Weighting",
    "all_anchors",
    "anchor_candidates",
    "default_chunk_size",
    "default_gamma",
    "frozen_head_loss",
    "sample_anchors",
]
