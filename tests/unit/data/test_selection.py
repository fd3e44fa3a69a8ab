"""Which rows and prompts are chosen."""

from __future__ import annotations

from collections import Counter

import pytest

from specdraft.data.selection import dealt

FAMILIES = ["a"] * 20 + ["b"] * 3 + ["c"] * 9


def test_a_small_number_covers_every_family_in_turn():
    chosen = dealt(range(len(FAMILIES)), FAMILIES, 4)
    assert [FAMILIES[i] for i in chosen] == ["a", "b", "c", "a"]


@pytest.mark.parametrize("count", [1, 3, 10, 16, 31])
def test_dealing_is_even_until_a_family_is_used_up_and_repeats_nothing(count):
    chosen = dealt(range(len(FAMILIES)), FAMILIES, count)
    assert len(chosen) == len(set(chosen)) == count
    shares = Counter(FAMILIES[i] for i in chosen)
    most = max(shares.values())
    assert all(
        shares[family] in (most, most - 1) or shares[family] == FAMILIES.count(family) for family in "abc"[:count]
    )


def test_a_family_gives_items_from_its_whole_length():
    chosen = dealt(range(20), ["a"] * 20, 4)
    assert chosen == [0, 5, 10, 15]


def test_all_are_kept_in_their_order():
    assert dealt([3, 1, 2], ["b", "a", "b"], None) == dealt([3, 1, 2], ["b", "a", "b"], 7) == [3, 1, 2]
