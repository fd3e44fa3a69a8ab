from __future__ import annotations

import pytest
import torch
from typing_extensions import override

from specdraft.objectives import FixedHorizon, Inclusion, Layout, all_anchors

MASK = 49


class ToyHorizons(Inclusion):
    """Every other block is cut to ``horizon`` slots."""

    def __init__(self, horizon: int, inner: Inclusion | None = None) -> None:
        self.horizon, self.inner = horizon, inner or FixedHorizon()

    @override
    def layout(self, known, *, first_slot, generator):
        out = self.inner.layout(known, first_slot=first_slot, generator=generator)
        short = (torch.arange(known.shape[1]) % 2 == 0)[:, None] & (torch.arange(known.shape[2]) >= self.horizon)
        return Layout(out.slots & ~short, out.revealed)


class ToyPrefix(Inclusion):
    """Reveal the first ``count`` slots behind the anchor."""

    def __init__(self, count: int, inner: Inclusion | None = None) -> None:
        self.count, self.inner = count, inner or FixedHorizon()

    @override
    def layout(self, known, *, first_slot, generator):
        out = self.inner.layout(known, first_slot=first_slot, generator=generator)
        return Layout(out.slots, out.revealed | (torch.arange(known.shape[2]) <= self.count))


class ToyRandom(Inclusion):
    """Reveal each slot by a coin."""

    @override
    def layout(self, known, *, first_slot, generator):
        return Layout(torch.ones_like(known), torch.rand(known.shape, generator=generator) < 0.5)


def build(inclusion, batch, size, first_slot, generator=None):
    anchors, valid = all_anchors(batch, 100)
    return inclusion.build(
        batch, anchors, valid, block_size=size, first_slot=first_slot, mask_token_id=MASK, generator=generator
    )


def draft_ok(batch, n, p, q):
    """Whether the token at q may be drafted from anchor p: an unbroken run of assistant tokens in one document."""
    return q < batch.input_ids.shape[1] and all(
        batch.loss_mask[n, x] and batch.document_ids[n, x] == batch.document_ids[n, p] for x in range(p + 1, q + 1)
    )


def check(blocks, batch, size, first_slot, exists, revealed):
    """Compare with loops; ``exists(a, i)`` and ``revealed(n, a, i)`` are what the inclusion asked for."""
    seen = 0
    for n, a in blocks.valid.nonzero().tolist():
        p = int(blocks.anchors[n, a])
        shown = {
            i
            for i in range(1, size)
            if exists(a, i) and revealed(n, a, i) and p + i > p and draft_ok(batch, n, p, p + i)
        }
        for i in range(size):
            assert bool(blocks.slots[n, a, i]) == exists(a, i)
            own = batch.input_ids[n, p + i] if i in shown or i == 0 else MASK
            assert blocks.tokens[n, a, i] == own
            q = p + i if first_slot == 1 else p + 1 + i
            expected = i >= first_slot and exists(a, i) and q > p and draft_ok(batch, n, p, q) and q - p not in shown
            assert bool(blocks.supervised[n, a, i]) == expected, (n, p, i)
            assert 0 <= blocks.label_positions[n, a, i] < batch.input_ids.shape[1]
            if expected:
                seen += 1
                assert blocks.labels[n, a, i] == batch.input_ids[n, q]
                assert blocks.label_positions[n, a, i] == q
    assert int(blocks.supervised.sum()) == seen > 0  # and nothing in filler blocks


@pytest.mark.parametrize("first_slot", [0, 1])
@pytest.mark.parametrize("size", [2, 4, 16])
def test_fixed_horizon_equals_loop(batch, size, first_slot):
    blocks = build(FixedHorizon(), batch, size, first_slot)
    assert not blocks.valid.all()
    assert blocks.slots.all()
    check(blocks, batch, size, first_slot, lambda a, i: True, lambda n, a, i: False)


def test_supervision_stops_at_the_turn_and_does_not_resume(make_batch):
    batch = make_batch([["aaauaaa"]])
    blocks = build(FixedHorizon(), batch, 6, 1)
    assert blocks.supervised[0, 0].tolist() == [False, True, True, False, False, False]


def test_supervision_stops_at_the_document_and_at_the_row(make_batch):
    batch = make_batch([["aaa", "aaa"]])
    blocks = build(FixedHorizon(), batch, 4, 0)
    assert blocks.anchors[0].tolist() == [0, 1, 3, 4]
    assert blocks.supervised[0].sum(-1).tolist() == [2, 1, 2, 1]


@pytest.mark.parametrize("first_slot", [0, 1])
def test_mixed_horizon_and_unmasking_fit_and_compose(batch, first_slot):
    for inclusion in (ToyPrefix(2, ToyHorizons(4)), ToyHorizons(4, ToyPrefix(2))):
        blocks = build(inclusion, batch, 6, first_slot)
        check(blocks, batch, 6, first_slot, lambda a, i: a % 2 == 1 or i < 4, lambda n, a, i: i <= 2)


@pytest.mark.parametrize("first_slot", [0, 1])
def test_random_unmasking_shows_no_label(batch, first_slot):
    blocks = build(ToyRandom(), batch, 8, first_slot, torch.Generator().manual_seed(5))
    wish = torch.rand(blocks.slots.shape, generator=torch.Generator().manual_seed(5)) < 0.5
    check(blocks, batch, 8, first_slot, lambda a, i: True, lambda n, a, i: bool(wish[n, a, i]))


def test_shifted_slots_stay_supervised_behind_a_revealed_prefix(make_batch):
    batch = make_batch([["aaaaaaaa"]])
    same, shifted = (build(ToyPrefix(2), batch, 5, first).supervised[0, 0].tolist() for first in (1, 0))
    assert same == [False, False, False, True, True]
    assert shifted == [False, False, True, True, True]


def test_bad_slots_are_refused(batch):
    with pytest.raises(ValueError, match="first_slot must be 0"):
        build(FixedHorizon(), batch, 4, 2)
    with pytest.raises(ValueError, match="block_size 1 leaves nothing"):
        build(FixedHorizon(), batch, 1, 1)
