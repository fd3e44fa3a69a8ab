from __future__ import annotations

import math

import pytest
import torch

from specdraft.objectives import ExponentialDecay, FixedHorizon, Scores, Uniform, all_anchors, default_gamma


def build(batch, first_slot):
    anchors, valid = all_anchors(batch, 100)
    return FixedHorizon().build(
        batch, anchors, valid, block_size=8, first_slot=first_slot, mask_token_id=49, generator=None
    )


def scores(blocks):
    return Scores(torch.zeros(blocks.labels.shape), torch.zeros(blocks.labels.shape, dtype=torch.bool))


@pytest.mark.parametrize("first_slot", [0, 1])
@pytest.mark.parametrize("gamma", [None, 0.7])
def test_decay_counts_from_the_first_supervised_slot(batch, first_slot, gamma):
    for revealed in (0, 2):
        blocks = build(batch, first_slot)
        blocks.supervised[..., : first_slot + revealed] = False
        weights = ExponentialDecay(gamma).weights(blocks, scores(blocks))
        assert weights.dtype == torch.float32
        for n, a, i in blocks.supervised.nonzero().tolist():
            k = i - (first_slot + revealed) + 1
            assert weights[n, a, i].item() == pytest.approx(math.exp(-(k - 1) / (gamma or 4.0)), rel=1e-6)


def test_published_gammas():
    assert [default_gamma(b) for b in (16, 10, 8)] == [7, 5, 4]
    assert default_gamma(12) == pytest.approx(5 + 2 / 3)
    assert all(default_gamma(b) < default_gamma(b + 1) for b in range(1, 40))


@pytest.mark.parametrize("gamma", [0, -1.0, float("nan")])
def test_bad_gamma_is_refused(gamma):
    with pytest.raises(ValueError, match="gamma must be positive"):
        ExponentialDecay(gamma)


def test_uniform(batch):
    blocks = build(batch, 1)
    assert torch.equal(Uniform().weights(blocks, scores(blocks)), blocks.supervised.float())
