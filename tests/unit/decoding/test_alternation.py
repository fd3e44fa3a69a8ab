"""Ways to decode take turns, and their parts add up."""

from __future__ import annotations

import pytest
import torch
from decoding_stubs import StubTarget

from specdraft.decoding import DecodeResult, Request, RequestResult, RoundLog, alternately
from specdraft.types import RoundTiming


@pytest.mark.parametrize(
    ("count", "concurrency", "shares"),
    [
        (16, 1, [4, 4, 4, 4]),
        (64, 8, [32, 32]),
        (10, 1, [5, 5]),
        (3, 8, [3]),
        (20, 8, [20]),
        (70, 8, [40, 30]),
        (0, 1, []),
    ],
)
def test_every_request_is_decoded_once_in_each_way_and_in_order(
    count: int, concurrency: int, shares: list[int]
) -> None:
    calls: list[tuple[str, int]] = []

    def way(name: str):
        def decode(requests: list[Request]) -> DecodeResult:
            calls.append((name, len(requests)))
            ids = [int(request.prompt_ids[0]) for request in requests]
            return DecodeResult(
                [RequestResult(tokens=[i]) for i in ids],
                prefill_seconds=1.0,
                decode_seconds=2.0,
                timing=RoundTiming(draft=0.5, verify=1.5),
                steps=len(ids),
                log=[RoundLog(4, 1, 1, 0.1)] * len(ids),
            )

        return decode

    requests = [Request(torch.tensor([i]), 1) for i in range(count)]
    results = alternately([way("a"), way("b")], requests, concurrency)
    assert [n for name, n in calls if name == "a"] == shares
    assert [name for name, _ in calls][:4] == ["a", "b", "b", "a"][: len(calls)]
    for result in results:
        assert [r.tokens for r in result.results] == [[i] for i in range(count)]
        assert (result.steps, len(result.log)) == (count, count)
        assert result.prefill_seconds == len(shares)
        assert result.decode_seconds == 2 * len(shares)
        assert result.timing == RoundTiming(draft=0.5 * len(shares), verify=1.5 * len(shares))


def test_what_does_not_fit_is_refused_before_anything_is_decoded() -> None:
    target = StubTarget()
    longest = target.spec.max_position_embeddings
    requests = [Request([1], 1) for _ in range(16)]
    requests[13] = Request([1] * longest, 2)
    with pytest.raises(ValueError, match=f"request 13: prompt of {longest} .* exceeds the {longest} positions"):
        alternately([lambda _: pytest.fail("decoded")], requests, 1, target.spec)
