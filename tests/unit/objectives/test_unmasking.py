"""Unmasking: revealed slots are inputs and never labels."""

from __future__ import annotations

import math

import pytest
import torch
from inclusion_blocks import MASK, build

from specdraft.objectives import (
    ExponentialDecay,
    FixedHorizon,
    IntraBlockUnmasking,
    MixedHorizon,
    Scores,
)
from specdraft.objectives.unmasking import longest_prefix, truncated_geometric


def own_token(batch, blocks, n, a, i):
    return int(batch.input_ids[n, min(int(blocks.anchors[n, a]) + i, batch.input_ids.shape[1] - 1)])


KINDS = {
    "prefix": {"probability": 1.0},
    "random": {"probability": 1.0, "random_share": 1.0},
    "mixture": {"probability": 0.7, "random_share": 0.5},
}


@pytest.mark.parametrize("first_slot", [0, 1])
@pytest.mark.parametrize("inner", [None, MixedHorizon([2, 5, 8])], ids=["fixed", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_revealed_slots_are_inputs_and_never_labels(batch, first_slot, inner, kind):
    blocks = build(IntraBlockUnmasking(**KINDS[kind], inner=inner), batch, 8, first_slot)
    plain = build(inner or FixedHorizon(), batch, 8, first_slot)
    seen = 0
    for n, a in blocks.valid.nonzero().tolist():
        shown = {int(blocks.anchors[n, a])}
        for i in range(1, 8):
            if blocks.tokens[n, a, i] != MASK:
                assert blocks.tokens[n, a, i] == own_token(batch, blocks, n, a, i)
                assert blocks.slots[n, a, i]
                shown.add(int(blocks.anchors[n, a]) + i)
                seen += 1
        labels = {int(blocks.label_positions[n, a, i]) for i in blocks.supervised[n, a].nonzero()[:, 0].tolist()}
        assert not shown & labels
        if inner is None:  # everything else that could be predicted still is
            wanted = {int(plain.label_positions[n, a, i]) for i in plain.supervised[n, a].nonzero()[:, 0].tolist()}
            assert labels == wanted - shown
    assert seen


@pytest.mark.parametrize("first_slot", [0, 1])
@pytest.mark.parametrize("outer", [False, True])
def test_a_prefix_leaves_a_slot_to_predict(batch, first_slot, outer):
    inclusion = IntraBlockUnmasking(1.0, decay=1.0, inner=MixedHorizon([2, 5, 8]) if outer else None)
    blocks = build(inclusion, batch, 8, first_slot)
    plain = build(inclusion.inner, batch, 8, first_slot)
    assert torch.equal(plain.supervised.any(-1), blocks.supervised.any(-1))
    assert (blocks.supervised.sum(-1) < plain.supervised.sum(-1)).any()
    for n, a in blocks.valid.nonzero().tolist():
        given = (blocks.tokens[n, a] != MASK).tolist()
        assert given == sorted(given, reverse=True)  # one run from the anchor
        first = int(blocks.supervised[n, a].int().argmax())
        if blocks.supervised[n, a].any():
            assert first == sum(given) - 1 + first_slot


@pytest.mark.parametrize("decay", [0.6, 0.9, 1.0])
def test_prefix_lengths_follow_the_truncated_law(decay):
    longest = torch.tensor([5, 1, 0])
    grid = (torch.arange(200_000) + 0.5) / 200_000
    lengths = truncated_geometric(grid[:, None].expand(-1, 3), longest, decay)
    assert (lengths[:, 1] == 1).all()
    assert (lengths[:, 2] == 0).all()
    total = sum(decay**j for j in range(1, 6))
    for j in range(1, 6):
        assert float((lengths[:, 0] == j).float().mean()) == pytest.approx(decay**j / total, abs=1e-4)
    assert truncated_geometric(torch.tensor([0.0, 1.0]), torch.tensor([5, 5]), decay).tolist() == [1, 5]


def test_longest_prefix_counts_by_hand():
    known = torch.tensor([[[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]]).bool()
    slots = torch.tensor([[[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]]).bool()
    assert longest_prefix(known, slots, 1).tolist() == [[4, 1, 0, 1]]
    assert longest_prefix(known, slots, 0).tolist() == [[4, 1, 0, 2]]


def test_anchor_only_blocks_stay_the_majority_by_default(make_batch):
    batch = make_batch([["a" * 900]], vocab=50)
    blocks = build(IntraBlockUnmasking(), batch, 16)
    revealed = (blocks.tokens[..., 1:] != MASK).any(-1)[blocks.valid]
    share = float(revealed.float().mean())
    assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / len(revealed))
    assert (build(IntraBlockUnmasking(0.0), batch, 16).tokens[..., 1:] == MASK).all()


def test_random_ratio_is_uniform_up_to_its_largest(make_batch):
    batch = make_batch([["a" * 900]], vocab=50)
    blocks = build(IntraBlockUnmasking(1.0, random_share=1.0, max_ratio=0.6), batch, 16)
    whole = (blocks.supervised.sum(-1) + (blocks.tokens[..., 1:] != MASK).sum(-1)) == 15
    shown = (blocks.tokens[..., 1:] != MASK).float().mean(-1)[whole & blocks.valid]
    assert float(shown.mean()) == pytest.approx(0.3, abs=0.02)
    assert float(shown.var()) == pytest.approx(0.6**2 / 12 + (0.3 - 0.12) / 15, abs=0.01)  # of t, and of the coins


@pytest.mark.parametrize("first_slot", [0, 1])
def test_decay_starts_anew_behind_a_revealed_prefix(batch, first_slot):
    blocks = build(IntraBlockUnmasking(1.0), batch, 8, first_slot)
    zeros = torch.zeros(blocks.labels.shape)
    weights = ExponentialDecay(2.0).weights(blocks, Scores(zeros, zeros.bool()))
    for n, a, i in blocks.supervised.nonzero().tolist():
        length = int((blocks.tokens[n, a] != MASK).sum()) - 1  # D2SD: exp(-(k - l - 1) / gamma) at place k
        k = i + 1 - first_slot
        assert weights[n, a, i].item() == pytest.approx(math.exp(-(k - length - 1) / 2.0), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probability": 1.1}, "probability 1.1"),
        ({"random_share": -0.1}, "random_share -0.1"),
        ({"decay": 0.0}, "decay 0.0"),
        ({"max_ratio": 0.0}, "max_ratio 0.0"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        IntraBlockUnmasking(**options)
