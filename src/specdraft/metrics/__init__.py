"""Metrics of drafting: pooled integer counts, ratios only at the end."""

from specdraft.metrics.acceptance import MeanAcceptedTokens, PrefixAcceptance
from specdraft.metrics.functional import match_prefix

__all__ = ["MeanAcceptedTokens", "PrefixAcceptance", "match_prefix"]
