"""Which rows a split takes: by family, by number, and by a hash of the row's name."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import chain, zip_longest
from typing import TypeVar

from specdraft.data.rows import Row

Item = TypeVar("Item")


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


def dealt(items: Sequence[Item], families: Sequence[str], count: int | None) -> list[Item]:
    """Deal ``count`` items, one of every family in turn, so that a small number covers all of them.

    Within a family the items are taken evenly from its whole length.

    Args:
        items: The items.
        families: The family of each.
        count: How many to take, at least 1; None or more than there are keeps all, in their order.
    """
    if count is None or count >= len(items):
        return list(items)
    members = defaultdict(list)
    for item, family in zip(items, families, strict=True):
        members[family].append(item)
    # how many each family gives when the turns go round, then which of its own
    turns = list(chain(*zip_longest(*([name] * len(group) for name, group in members.items()))))
    given = [name for name in turns if name is not None][:count]
    shares = {name: given.count(name) for name in members}
    chosen = {
        name: [group[i * len(group) // n] for i in range(n)] for name, group in members.items() if (n := shares[name])
    }
    return [chosen[name].pop(0) for name in given]


def _place(purpose: str, name: str) -> float:
    """A number in [0, 1) that stands for a name."""
    return int.from_bytes(hashlib.sha256(f"{purpose}:{name}".encode()).digest()[:6], "big") / 2**48
