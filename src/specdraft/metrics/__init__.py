"""Metrics of drafting: pooled integer counts, ratios only at the end."""

from specdraft.metrics.acceptance import MeanAcceptedTokens, PrefixAcceptance
from specdraft.metrics.candidates import CandidateRecall, OraclePrefix
from specdraft.metrics.functional import match_prefix

__all__ = ["CandidateRecall", "MeanAcceptedTokens", "OraclePrefix", "PrefixAcceptance", "match_prefix"]
