"""Decoding: sampling, lossless verification, the autoregressive baseline and the speculative loop."""

from specdraft.decoding.autoregressive import autoregressive_decode
from specdraft.decoding.confidence import ConfidenceCut, check_threshold, with_threshold
from specdraft.decoding.engine import speculative_decode
from specdraft.decoding.requests import DecodeResult, OnFinish, Request, RequestResult
from specdraft.decoding.sampling import SamplingParams, next_tokens, sample, to_probs
from specdraft.decoding.verify import Rule, verify, verify_greedy

__all__ = [
    "ConfidenceCut",
    "DecodeResult",
    "OnFinish",
    "Request",
    "RequestResult",
    "Rule",
    "SamplingParams",
    "autoregressive_decode",
    "check_threshold",
    "next_tokens",
    "sample",
    "speculative_decode",
    "to_probs",
    "verify",
    "verify_greedy",
    "with_threshold",
]
