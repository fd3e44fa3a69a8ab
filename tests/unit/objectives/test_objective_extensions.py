"""Weightings and terms of a user's own fit as subclasses; the built-in ones are tested apart."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from specdraft.objectives import Objective, Uniform, Weighting

B, H, V = 6, 8, 50


def make_blocks(objective, batch, first_slot=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return objective.blocks(batch, block_size=B, first_slot=first_slot, mask_token_id=V - 1, generator=generator)


def states(blocks, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*blocks.tokens.shape, H, generator=generator).requires_grad_()


def last_hidden(batch):
    return torch.randn(*batch.input_ids.shape, H, generator=torch.Generator().manual_seed(9))


@pytest.fixture
def head(toy_head):
    return toy_head(torch.randn(V, H, generator=torch.Generator().manual_seed(7)))


class ToyAcceptance(Weighting):
    """Prefix product of label probabilities (exclusive), or of overlaps."""

    def __init__(self, overlap=False):
        self.overlap = overlap

    @property
    def needs_target(self):
        return self.overlap

    def weights(self, blocks, scores):
        score = scores.overlap if self.overlap else scores.label_prob
        score = (0.5 * score + 0.5).masked_fill(~blocks.supervised, 1)
        return score.cumprod(-1) / score


class ToyFirstError(Weighting):
    """1 up to and including the first miss."""

    def weights(self, blocks, scores):
        misses = (blocks.supervised & ~scores.correct).long().cumsum(-1)
        return ((misses == 0) | ((misses == 1) & ~scores.correct)).float()


class WithChain(Objective):
    """Cross-entropy plus the expected accepted length of each block, each with its own denominator."""

    def reduce(self, losses, counted, weights):
        base, total = super().reduce(losses, counted, weights)
        chain = torch.exp(-losses.cumsum(-1)) * counted
        blocks = counted.any(-1).sum().float()
        return torch.stack([base, -0.5 * chain.sum()]), torch.stack([total, blocks])


def test_no_gradient_flows_through_weights(batch, head):
    objective = Objective(weighting=ToyAcceptance(), num_anchors=4)
    blocks = make_blocks(objective, batch)
    hidden = states(blocks)
    out = objective(hidden, blocks, head)
    assert not out.weights.requires_grad
    assert not out.denominator.requires_grad
    (got,) = torch.autograd.grad(out.numerator, hidden)
    losses = F.cross_entropy(head(hidden).flatten(0, -2), blocks.labels.flatten(), reduction="none").view(
        blocks.labels.shape
    )
    reference = lambda weights: torch.autograd.grad((losses * weights).sum(), hidden, retain_graph=True)[0]  # noqa: E731
    torch.testing.assert_close(got, reference(out.weights), atol=1e-5, rtol=1e-5)
    q = torch.exp(-losses).masked_fill(~blocks.supervised, 1)
    smooth = 0.5 * q + 0.5 * blocks.supervised + 0.5 * ~blocks.supervised
    attached = (smooth.cumprod(-1) / smooth) * blocks.supervised
    torch.testing.assert_close(out.weights, attached.detach(), atol=1e-5, rtol=1e-5)
    assert (reference(attached) - got).abs().max() > 1e-3  # with gradients it would be another loss


def test_overlap_scores_reach_the_weighting(batch, head):
    objective = Objective(weighting=ToyAcceptance(overlap=True), num_anchors=4)
    assert objective.needs_last_hidden
    blocks = make_blocks(objective, batch)
    hidden, last = states(blocks), last_hidden(batch)
    out = objective(hidden, blocks, head, last)
    n, a = (int(x) for x in (blocks.supervised.sum(-1) > 1).nonzero()[0])
    i = int(blocks.supervised[n, a].nonzero()[0])
    p = head(last[n, blocks.label_positions[n, a, i] - 1]).softmax(-1)
    overlap = torch.minimum(p, head(hidden[n, a, i]).softmax(-1)).sum()
    assert out.weights[n, a, i + 1].item() == pytest.approx(0.5 * overlap.item() + 0.5, rel=1e-5)


def test_first_error_weighting_fits(batch, head):
    objective = Objective(weighting=ToyFirstError(), num_anchors=50)
    blocks = make_blocks(objective, batch)
    hidden = states(blocks)
    with torch.no_grad():
        hidden[..., :3, :] = head.full[blocks.labels[..., :3]] * 10
    out = objective(hidden, blocks, head)
    for n, a in blocks.valid.nonzero().tolist():
        counted, alive = 0, True
        for i in blocks.supervised[n, a].nonzero()[:, 0].tolist():
            counted += alive
            alive = alive and bool(out.correct[n, a, i])
        assert out.weights[n, a].sum() == counted


def test_chain_term_and_sum_of_terms_fit(batch, head):
    objective = WithChain(weighting=Uniform(), num_anchors=4)
    blocks = make_blocks(objective, batch)
    hidden = states(blocks)
    out = objective(hidden, blocks, head)
    q = head(hidden).softmax(-1).gather(-1, blocks.labels[..., None])[..., 0]
    chain, count = hidden.sum() * 0, 0
    for n, a in blocks.supervised.any(-1).nonzero().tolist():
        product, count = 1.0, count + 1
        for i in blocks.supervised[n, a].nonzero()[:, 0].tolist():
            product = product * q[n, a, i]
            chain = chain + product
    entropy = -q[blocks.supervised].log().mean()
    expected = entropy - 0.5 * chain / count
    torch.testing.assert_close(out.loss, expected, atol=1e-5, rtol=1e-5)
    got, reference = (torch.autograd.grad(x, hidden)[0] for x in (out.loss, expected))
    torch.testing.assert_close(got, reference, atol=1e-5, rtol=1e-5)


def test_a_weighting_with_parameters_is_detached_too(batch, head):
    class Learned(Weighting):
        scale = torch.ones(B, requires_grad=True)

        def weights(self, blocks, scores):
            return self.scale * blocks.supervised

    objective = Objective(weighting=Learned(), num_anchors=4)
    blocks = make_blocks(objective, batch)
    out = objective(states(blocks), blocks, head)
    assert not out.weights.requires_grad
    assert not out.denominator.requires_grad
    out.loss.backward()
    assert Learned.scale.grad is None
