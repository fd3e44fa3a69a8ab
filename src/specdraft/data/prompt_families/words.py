"""Small helpers for word banks: splitting, plurals, articles and seeded choices."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def bank(text: str) -> list[str]:
    """Entries of a compact bank, separated by commas or newlines.

    Raises:
        ValueError: If an entry occurs twice, since a repeated filler would make repeated prompts.
    """
    return _distinct(text.replace("\n", ",").split(","))


def lines(text: str) -> list[str]:
    """Entries of a bank whose entries contain commas, separated by newlines or " / "."""
    return _distinct(text.replace(" / ", "\n").splitlines())


def _distinct(raw: list[str]) -> list[str]:
    entries = [entry.strip() for entry in raw if entry.strip()]
    repeated = sorted({entry for entry in entries if entries.count(entry) > 1})
    if repeated:
        raise ValueError(f"the bank repeats {repeated}; keep each entry once")
    return entries


def plural(noun: str) -> str:
    """Regular English plural; banks hold only nouns for which it is right."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def with_article(noun: str) -> str:
    """The noun behind "a" or "an"; banks hold no noun whose first sound differs from its first letter."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """One option, drawn with ``rng.random()``: the only method whose sequence Python promises to keep."""
    return options[int(rng.random() * len(options))]


def shuffled(rng: random.Random, items: Sequence[T]) -> list[T]:
    """A shuffled copy, drawn with ``rng.random()`` for the same reason as ``pick``."""
    keys = [rng.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def draw_distinct(count: int, make: Callable[[int], str]) -> list[str]:
    """``count`` distinct results of ``make(attempt)``.

    Raises:
        ValueError: If the banks behind ``make`` are too small.
    """
    found: dict[str, None] = {}
    for attempt in range(20 * count):
        found.setdefault(make(attempt), None)
        if len(found) == count:
            return list(found)
    raise ValueError(f"only {len(found)} of {count} distinct prompts; add fillers or templates")
