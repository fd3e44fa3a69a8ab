"""Decoding: sampling, lossless verification, the autoregressive baseline and the speculative loop."""

from specdraft.decoding.autoregressive import autoregressive_decode
from specdraft.decoding.requests import DecodeResult, OnFinish, Request, RequestResult
from specdraft.decoding.sampling import SamplingParams, next_tokens, sample, to_probs

__all__ = [
    "DecodeResult",
    "OnFinish",
    "Request",
    "RequestResult",
    "SamplingParams",
    "autoregressive_decode",
    "next_tokens",
    "sample",
    "to_probs",
]
