"""Rounds summed up by their shape: block size and rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from specdraft.decoding import RoundLog

Shape = dict[str, Any]


def round_shapes(log: Iterable[RoundLog]) -> list[Shape]:
    """Rounds, tokens, seconds and median seconds of every block size and number of rows, as builtins.

    Args:
        log: The rounds of a decode.
    """
    groups: dict[tuple[int, int], list[RoundLog]] = defaultdict(list)
    for entry in log:
        groups[entry.block_size, entry.rows].append(entry)
    return [
        {
            "block_size": block,
            "rows": rows,
            "rounds": len(own),
            "tokens": sum(entry.tokens for entry in own),
            "seconds": sum(entry.seconds for entry in own),
            "median_seconds": median(entry.seconds for entry in own),
        }
        for (block, rows), own in sorted(groups.items())
    ]


def fullest(shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes with most rows in flight: what a steady queue sees, without the end, when rows run empty.

    Args:
        shapes: From :func:`round_shapes`.
    """
    most = max((shape["rows"] for shape in shapes), default=0)
    return [shape for shape in shapes if shape["rows"] == most]
