"""Metrics of drafting: pooled integer counts, ratios only at the end."""

from specdraft.metrics.acceptance import MeanAcceptedTokens, PrefixAcceptance
from specdraft.metrics.calibration import ConfidenceCounts, expected_calibration_error, fit_temperatures
from specdraft.metrics.candidates import CandidateRecall, OraclePrefix
from specdraft.metrics.functional import match_prefix

__all__ = [
    "CandidateRecall",
    "ConfidenceCounts",
    "MeanAcceptedTokens",
    "OraclePrefix",
    "PrefixAcceptance",
    "expected_calibration_error",
    "fit_temperatures",
    "match_prefix",
]
