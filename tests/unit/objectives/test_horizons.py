"""Mixed horizons: which blocks come out, and that they are what was asked for."""

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
    Objective,
    Scores,
    default_gamma,
    sample_anchors,
)


@pytest.fixture
def long(make_batch):
    return make_batch([["a" * 400], ["u" + "a" * 300]])


@pytest.mark.parametrize("first_slot", [0, 1])
def test_a_block_of_a_horizon_is_the_block_of_that_size(batch, first_slot):
    """Matched input: every part equals that of a fixed block of the same size."""
    mixed = build(MixedHorizon([2, 3, 6]), batch, 6, first_slot)
    horizons = mixed.slots.sum(-1)
    assert set(horizons.unique().tolist()) == {2, 3, 6}
    for size in (2, 3, 6):
        fixed = build(FixedHorizon(), batch, size, first_slot)
        same = horizons == size
        for name in ("tokens", "labels", "supervised", "label_positions", "slots"):
            assert torch.equal(getattr(mixed, name)[same][:, :size], getattr(fixed, name)[same]), name
        assert not mixed.supervised[same][:, size:].any()
        assert not mixed.slots[same][:, size:].any()


def test_horizons_follow_the_probabilities_and_the_seed(long):
    blocks = build(MixedHorizon([2, 4, 8], [0.5, 0.0, 0.5]), long)
    horizons = blocks.slots.sum(-1)[blocks.valid]
    share = [float((horizons == h).float().mean()) for h in (2, 4, 8)]
    assert share[1] == 0
    assert abs(share[0] - 0.5) < 3 * math.sqrt(0.25 / len(horizons))
    again = build(MixedHorizon([2, 4, 8], [0.5, 0.0, 0.5]), long)
    assert torch.equal(again.slots, blocks.slots)
    assert not torch.equal(build(MixedHorizon([2, 4, 8], [0.5, 0.0, 0.5]), long, seed=1).slots, blocks.slots)


def test_default_horizons_are_quarters_of_the_block():
    assert MixedHorizon().mixture(16, 1) == ([4, 8, 12, 16], [0.25] * 4)
    assert MixedHorizon().mixture(8, 0)[0] == [2, 4, 6, 8]
    assert MixedHorizon().mixture(4, 1) == ([2, 3, 4], [0.5, 0.25, 0.25])  # a horizon of 1 would predict nothing
    assert MixedHorizon().mixture(4, 0)[0] == [1, 2, 3, 4]


def test_curriculum_moves_linearly_and_then_holds():
    inclusion = IntraBlockUnmasking(inner=MixedHorizon([2, 8], [0.2, 0.8], [1.0, 0.0], curriculum=0.5))
    objective = Objective(inclusion=inclusion)
    expected = {0.0: [1.0], 0.25: [0.6, 0.4], 0.5: [0.2, 0.8], 0.9: [0.2, 0.8]}
    for progress, probabilities in expected.items():
        objective.set_progress(progress)  # reaches the inner inclusion
        assert inclusion.inner.mixture(8, 1)[1] == pytest.approx(probabilities)


def test_slots_that_no_block_has_are_not_computed(long):
    """The curriculum's first horizons, and one horizon per batch, cut the tensors themselves."""
    short = MixedHorizon([2, 4, 8], initial_probabilities=[0.5, 0.5, 0.0])
    short.set_progress(0.0)
    blocks = build(IntraBlockUnmasking(inner=short), long)
    assert blocks.tokens.shape[-1] == blocks.labels.shape[-1] == blocks.supervised.shape[-1] == 4
    seen = set()
    for seed in range(20):
        blocks = build(MixedHorizon([2, 8], per_batch=True), long, seed=seed)
        assert blocks.slots.all()
        assert blocks.tokens.shape == blocks.slots.shape == blocks.label_positions.shape
        seen.add(blocks.tokens.shape[-1])
    assert seen == {2, 8}
    rare = MixedHorizon([2, 8], [0.2, 0.8], per_batch=True)
    short = sum(build(rare, long, seed=seed).tokens.shape[-1] == 2 for seed in range(300))
    assert 0.12 < short / 300 < 0.28
    nested = MixedHorizon([8], inner=MixedHorizon([4]))
    assert build(nested, long).tokens.shape[-1] == 4


def test_anchors_do_not_depend_on_the_inclusion(long):
    draw = lambda: sample_anchors(long, 16, generator=torch.Generator().manual_seed(3))[0]  # noqa: E731
    args = {"block_size": 8, "first_slot": 1, "mask_token_id": MASK}
    for inclusion in (FixedHorizon(), MixedHorizon(), IntraBlockUnmasking(inner=MixedHorizon())):
        objective = Objective(inclusion=inclusion, num_anchors=16)
        blocks = objective.blocks(long, **args, generator=torch.Generator().manual_seed(3))
        assert torch.equal(blocks.anchors, draw())


def test_a_short_block_decays_like_a_drafter_of_its_size(long):
    blocks = build(MixedHorizon([4, 16]), long, 16)
    zeros = torch.zeros(blocks.labels.shape)
    weights = ExponentialDecay().weights(blocks, Scores(zeros, zeros.bool()))
    for n, a in blocks.valid.nonzero()[::50].tolist():
        size = int(blocks.slots[n, a].sum())
        for k in range(1, int(blocks.supervised[n, a].sum()) + 1):
            assert weights[n, a, k].item() == pytest.approx(math.exp(-(k - 1) / default_gamma(size)), rel=1e-5)


@pytest.mark.parametrize(
    ("build_it", "message"),
    [
        (lambda: MixedHorizon([]), "horizons must be different"),
        (lambda: MixedHorizon([0, 4]), "at least 1"),
        (lambda: MixedHorizon([4, 4]), "different"),
        (lambda: MixedHorizon([4, 8], [0.5, 0.6]), "sum to 1, not to 1.1"),
        (lambda: MixedHorizon([4, 8], [1.5, -0.5]), "not be negative"),
        (lambda: MixedHorizon([4, 8], [1.0]), "one value for each of the 2 horizons"),
        (lambda: MixedHorizon(initial_probabilities=[1.0]), "initial_probabilities .* 4 horizons"),
        (lambda: MixedHorizon([4], curriculum=0), "curriculum must lie in"),
        (lambda: MixedHorizon([4, 9]).mixture(8, 1), "horizon 9 is larger than the drafter's block size 8"),
        (lambda: MixedHorizon([1, 4]).mixture(8, 1), "horizon 1 leaves nothing to predict; use at least 2"),
    ],
)
def test_what_cannot_be_is_refused(build_it, message):
    with pytest.raises(ValueError, match=message):
        build_it()


def test_trained_horizons():
    assert FixedHorizon().trained_horizons(16, 1) == [16]
    assert MixedHorizon().trained_horizons(16, 1) == [4, 8, 12, 16]
    mixed = MixedHorizon([8, 2], [1.0, 0.0], initial_probabilities=[0.0, 1.0])
    assert mixed.trained_horizons(8, 1) == [8]  # what the training ends with
    assert IntraBlockUnmasking(inner=MixedHorizon([6, 3])).trained_horizons(6, 1) == [3, 6]
