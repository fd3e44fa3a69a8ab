"""Search for the best of many drafters with few measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise


def unimodal_best(count: int, value: Callable[[int], float]) -> dict[int, float]:
    """Find the maximum of a sequence that rises and then falls, in about 2 log2(count) evaluations.

    MAT is concave in the drafter's depth and the latency of a round affine in it, so that their ratio has one peak
    (DESIGN 9). Of equal neighbours the search goes to the lower one, the cheaper drafter.

    Args:
        count: Length of the sequence, at least 1.
        value: Its entries; each is asked for once at most.

    Returns:
        The entries that were evaluated, by index; the best of them is the answer.

    Raises:
        ValueError: If the sequence is empty.
    """
    if count < 1:
        raise ValueError("there is nothing to search: give at least one checkpoint")
    seen: dict[int, float] = {}

    def at(index: int) -> float:
        if index not in seen:
            seen[index] = value(index)
        return seen[index]

    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if at(middle) < at(middle + 1):
            low = middle + 1
        else:
            high = middle
    at(low)
    return seen


def has_one_peak(values: Sequence[float]) -> bool:
    """Whether a sequence rises, maybe not at all, and then only falls; what the search takes for granted."""
    rises = [after > before for before, after in pairwise(values)]
    return all(before or not after for before, after in pairwise(rises))
