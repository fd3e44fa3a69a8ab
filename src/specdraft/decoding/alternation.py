"""Ways to decode that take turns over the same requests, so that a machine whose speed drifts favours none of them."""

from __future__ import annotations

from collections.abc import Callable

from specdraft.decoding.requests import DecodeResult, Request
from specdraft.types import RoundTiming

Decode = Callable[[list[Request]], DecodeResult]


def alternately(decodes: list[Decode], requests: list[Request], concurrency: int, turns: int = 4) -> list[DecodeResult]:
    """Decode all requests in each way, a share of them at a time; every second share in the reversed order.

    Quotients of the rates then hold although seconds drift. A share is a multiple of ``concurrency``, so that batches
    stay as full as without turns.

    Args:
        decodes: The ways to decode.
        requests: What to decode.
        concurrency: Requests in flight.
        turns: Shares at most.

    Returns:
        A result of each way over all requests, in their order.
    """
    share = concurrency * max(1, -(-len(requests) // (concurrency * turns)))
    parts: list[list[DecodeResult]] = [[] for _ in decodes]
    for turn, at in enumerate(range(0, len(requests), share)):
        order = range(len(decodes))
        for which in reversed(order) if turn % 2 else order:
            parts[which].append(decodes[which](requests[at : at + share]))
    return [joined(each) for each in parts]


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
