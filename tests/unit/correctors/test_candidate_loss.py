"""Losses over candidates against their definitions, alone and inside a corrector."""

from __future__ import annotations

import pytest
import torch

from specdraft.correctors import (
    DCOCO,
    CandidateCrossEntropy,
    CandidateLossSum,
    CandidateMargin,
    ExpectedRegret,
    SelectorCorrector,
)


def setting(count=7, candidates=5):
    g = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(count, candidates, generator=g)
    place = torch.randint(candidates, (count,), generator=g)
    return scores.requires_grad_(), place, 3 * torch.randn(count, candidates, generator=g)


def test_margin():
    scores, place, _ = setting()
    losses = CandidateMargin(1.5)(scores, place, None)
    for n in range(7):
        others = [float(s) for j, s in enumerate(scores[n]) if j != int(place[n])]
        expected = max(0.0, 1.5 - (float(scores[n, place[n]]) - max(others)))
        assert float(losses[n].detach()) == pytest.approx(expected, abs=1e-6)
    losses.sum().backward()
    assert torch.isfinite(scores.grad).all()


def test_margin_is_zero_where_the_label_is_safe():
    scores = torch.tensor([[5.0, 1.0, 0.0], [2.5, 1.0, 0.0]])
    assert CandidateMargin(2.0)(scores, torch.tensor([0, 0]), None).tolist() == [0.0, 0.5]


def test_regret():
    scores, place, target = setting()
    losses = ExpectedRegret()(scores, place, target)
    for n in range(7):
        law = torch.softmax(scores[n], 0)
        gold = float(target[n, place[n]])
        expected = sum(float(law[j]) * max(0.0, gold - float(target[n, j])) for j in range(5))
        assert float(losses[n].detach()) == pytest.approx(expected, abs=1e-5)


def test_sum():
    scores, place, target = setting()
    terms = [CandidateCrossEntropy(), CandidateMargin(), ExpectedRegret()]
    both = CandidateLossSum(terms, [0.125, 0.125, 0.25])
    assert both.needs_target
    assert not CandidateLossSum(terms[:2], [1.0, 1.0]).needs_target
    expected = sum(w * t(scores, place, target) for t, w in zip(terms, (0.125, 0.125, 0.25), strict=True))
    torch.testing.assert_close(both(scores, place, target), expected)


@pytest.mark.parametrize("name", ["dcoco", "selector"])
def test_corrector_learns_from_it(world, name):
    """The loss of a corrector is that of its scores; a missed label stands in the last place, its target logit too."""
    world = world()
    asked = []

    def target_logits(ids):
        asked.append(ids)
        return ids.float().sin()

    class Recording(ExpectedRegret):
        def __call__(self, scores, place, target_logits):
            self.seen = (scores.detach(), place, target_logits)
            return super().__call__(scores, place, target_logits)

    loss = Recording()
    corrector = world.make(name, loss=loss)
    assert corrector.needs_target
    assert not world.make(name).needs_target
    batch = world.batch(target_logits=target_logits)
    correction = corrector(batch)
    scores, place, seen = loss.seen
    counted = batch.counted.flatten()
    ids = asked[0].flatten(0, 1)
    assert ids.gather(1, place[:, None])[counted, 0].equal(batch.labels.flatten()[counted])
    torch.testing.assert_close(seen, ids.float().sin())
    expected = (ExpectedRegret()(scores, place, seen) * batch.weights.flatten())[counted].sum()
    torch.testing.assert_close(correction.numerator, expected)
    correction.numerator.backward()
    assert any(p.grad is not None and p.grad.any() for p in corrector.parameters())


def test_refuses(world):
    for margin in (0.0, -1.0):
        with pytest.raises(ValueError, match="margin must be positive"):
            CandidateMargin(margin)
    with pytest.raises(ValueError, match="1 terms and 2 weights"):
        CandidateLossSum([CandidateMargin()], [1.0, 2.0])
    with pytest.raises(ValueError, match="finite"):
        CandidateLossSum([CandidateMargin()], [float("nan")])
    world_ = world()
    for make in (DCOCO, SelectorCorrector):
        corrector = make(world_.spec, candidates=4, loss=ExpectedRegret())
        corrector.bind(lambda ids: world_.table[ids])
        with pytest.raises(ValueError, match="ExpectedRegret needs the target's last hidden states"):
            corrector(world_.batch())
