"""Ways to decode that take turns over the same requests, so that a machine whose speed drifts favours none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdraft.decoding.requests import DecodeResult, Request
from specdraft.decoding.schedule import check_requests
from specdraft.types import RoundTiming, TargetSpec

Decode = Callable[[list[Request]], DecodeResult]


TURNS = 16
# a row of the batch decodes at least as many requests in a share, so that it seldom runs empty
REQUESTS_PER_ROW = 4


def alternately(
    decodes: list[Decode], requests: list[Request], concurrency: int, spec: TargetSpec | None = None
) -> list[DecodeResult]:
    """Decode all requests in each way, a share of them at a time; every second share in the reversed order.

    Quotients of the rates then hold although seconds drift.

    Args:
        decodes: The ways to decode.
        requests: What to decode.
        concurrency: Requests in flight.
        spec: The target, to refuse what it cannot hold before anything is decoded; None leaves that to every share.

    Returns:
        A result of each way over all requests, in their order.

    Raises:
        ValueError: Naming the request that cannot be decoded.
    """
    if spec is not None:
        check_requests(requests, spec)
    parts: list[list[DecodeResult]] = [[] for _ in decodes]
    for turn, share in enumerate(shares(len(requests), concurrency)):
        for which in in_turn(len(decodes), turn):
            parts[which].append(decodes[which](requests[share]))
    return [joined(each) for each in parts]


def shares(count: int, concurrency: int) -> list[slice]:
    """Up to ``TURNS`` shares of ``count`` requests, fewer where a share would hold too few for ``concurrency`` rows.

    All but the last are equal multiples of ``concurrency``.
    """
    turns = max(1, min(TURNS, count // (REQUESTS_PER_ROW * concurrency)))
    size = concurrency * max(1, -(-count // (concurrency * turns)))
    return [slice(at, at + size) for at in range(0, count, size)]


def in_turn(ways: int, turn: int) -> Sequence[int]:
    """Order of the ways in a turn: every second one reversed, so that none always follows the same other."""
    return range(ways)[::-1] if turn % 2 else range(ways)


def joined(parts: list[DecodeResult]) -> DecodeResult:
    """One result of several over consecutive requests: lists behind each other, seconds and steps added."""
    return DecodeResult(
        results=[result for part in parts for result in part.results],
        prefill_seconds=sum(part.prefill_seconds for part in parts),
        decode_seconds=sum(part.decode_seconds for part in parts),
        timing=sum((part.timing for part in parts), RoundTiming()),
        steps=sum(part.steps for part in parts),
        log=[entry for part in parts for entry in part.log],
    )
