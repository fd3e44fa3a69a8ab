"""Which rows a split takes: by family, by number, and by a hash of the row's name."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from specdraft.data.rows import Row


def by_family(rows: Sequence[Row], families: Collection[str] | None) -> list[Row]:
    """Keep the rows of some families; all of them without a choice.

    Raises:
        ValueError: If a family does not occur.
    """
    if families is None:
        return list(rows)
    known = {row.family for row in rows}
    if missing := sorted(set(families) - known):
        raise ValueError(
            f"no row is of family {missing[0]!r}; there are {', '.join(map(repr, sorted(known))) or 'none'}"
        )
    return [row for row in rows if row.family in families]


def split(rows: Sequence[Row], fraction: float) -> tuple[list[Row], list[Row]]:
    """Divide rows into training and validation.

    A row's side depends on its name alone: not on its place, the other rows or a seed, so that runs with different
    seeds and grown data sets are validated on the same rows. One row at least is held out if there are two.

    Args:
        rows: The rows.
        fraction: Share to hold out, about; 0 holds out none.
    """
    if not fraction:
        return list(rows), []
    limit = fraction
    if len({row.id for row in rows}) > 1:
        limit = max(limit, min(_place("split", row.id) for row in rows) + 2.0**-53)
    held = [_place("split", row.id) < limit for row in rows]
    return [row for row, out in zip(rows, held, strict=True) if not out], [
        row for row, out in zip(rows, held, strict=True) if out
    ]


def at_most(rows: Sequence[Row], count: int | None) -> list[Row]:
    """Keep ``count`` rows spread over the whole data, in their order; a larger count keeps a superset."""
    if count is None or count >= len(rows):
        return list(rows)
    chosen = sorted(range(len(rows)), key=lambda i: (_place("subset", rows[i].id), i))[:count]
    return [rows[i] for i in sorted(chosen)]


def _place(purpose: str, name: str) -> float:
    """A number in [0, 1) that stands for a name."""
    return int.from_bytes(hashlib.sha256(f"{purpose}:{name}".encode()).digest()[:6], "big") / 2**48
