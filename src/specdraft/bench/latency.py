"""What a user waits for: time to the first token, and between tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specdraft.decoding import RequestResult

POINTS = (50, 90, 99)


def percentiles(values: Sequence[float], points: Iterable[float] = POINTS) -> dict[str, float | None]:
    """Percentiles by linear interpolation between the order statistics, as numpy's default.

    Args:
        values: Sample, in any order.
        points: Percentages, 0..100.

    Returns:
        ``{"p50": ...}``, and ``mean``; None everywhere for an empty sample.
    """
    ordered = sorted(values)
    out: dict[str, float | None] = {"mean": sum(ordered) / len(ordered) if ordered else None}
    for point in points:
        if not ordered:
            out[f"p{point:g}"] = None
            continue
        place = (len(ordered) - 1) * point / 100
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        out[f"p{point:g}"] = ordered[low] + (ordered[high] - ordered[low]) * (place - low)
    return out


def first_token_seconds(results: Iterable[RequestResult]) -> list[float]:
    """Seconds of each request from entering a slot to its first token."""
    return [result.arrivals[0] for result in results if result.arrivals]


def round_gaps(results: Iterable[RequestResult]) -> list[float]:
    """Seconds between two arrivals of the same request: how long its stream stands still."""
    return [after - before for r in results for before, after in zip(r.arrivals, r.arrivals[1:], strict=False)]


def inter_token_seconds(results: Iterable[RequestResult]) -> list[float]:
    """Seconds per token behind the first: the gap between two arrivals, spread evenly over the tokens of the second.

    The tokens of a round arrive together; to count a gap of zero for all but one of them would make the median say
    nothing.
    """
    out: list[float] = []
    for result in results:
        gaps = zip(result.arrivals, result.arrivals[1:], result.accepted, strict=False)
        for before, after, accepted in gaps:
            out += [(after - before) / (accepted + 1)] * (accepted + 1)
    return out


def stream_tokens_per_second(results: Iterable[RequestResult]) -> float | None:
    """Tokens behind the first per second of a request's own rounds, prefills of others left out; None without any."""
    tokens = seconds = 0.0
    for result in results:
        tokens += len(result.tokens) - 1
        seconds += result.decoding_seconds
    return tokens / seconds if seconds else None
