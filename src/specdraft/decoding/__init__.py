"""Decoding: sampling, lossless verification, the autoregressive baseline, the speculative loop and its policies."""

from specdraft.decoding.alternation import alternately
from specdraft.decoding.autoregressive import autoregressive_decode
from specdraft.decoding.confidence import ConfidenceCut, check_threshold, with_threshold
from specdraft.decoding.engine import speculative_decode
from specdraft.decoding.policy import BlockPolicy, FixedBlock, RunningSurvival, StaticTable, TunedPolicy
from specdraft.decoding.policy_file import MadeFor, PolicyFile, load_policy
from specdraft.decoding.requests import DecodeResult, OnFinish, Request, RequestResult, RoundLog
from specdraft.decoding.rounds import check_block_size
from specdraft.decoding.sampling import SamplingParams, next_tokens, sample, to_probs
from specdraft.decoding.schedule import check_requests
from specdraft.decoding.tuned import TunedTables
from specdraft.decoding.verify import Rule, verify, verify_greedy

__all__ = [
    "BlockPolicy",
    "ConfidenceCut",
    "DecodeResult",
    "FixedBlock",
    "MadeFor",
    "OnFinish",
    "PolicyFile",
    "Request",
    "RequestResult",
    "RoundLog",
    "Rule",
    "RunningSurvival",
    "SamplingParams",
    "StaticTable",
    "TunedPolicy",
    "TunedTables",
    "alternately",
    "autoregressive_decode",
    "check_block_size",
    "check_requests",
    "check_threshold",
    "load_policy",
    "next_tokens",
    "sample",
    "speculative_decode",
    "to_probs",
    "verify",
    "verify_greedy",
    "with_threshold",
]
