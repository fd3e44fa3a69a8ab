"""Terms over whole blocks: value, gradient, normalisation, reduced vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from specdraft.objectives import (
    AcceptedLength,
    CrossEntropy,
    ExponentialDecay,
    FirstError,
    IntraBlockUnmasking,
    MixedHorizon,
    NegativeLogAcceptance,
    Objective,
    TotalVariation,
    Uniform,
    WeightedSum,
)

B, H, V = 6, 8, 50


def make_blocks(objective, batch, first_slot=1):
    generator = torch.Generator().manual_seed(0)
    return objective.blocks(batch, block_size=B, first_slot=first_slot, mask_token_id=V - 1, generator=generator)


def states(blocks):
    return torch.randn(*blocks.tokens.shape, H, generator=torch.Generator().manual_seed(0)).requires_grad_()


def last_hidden(batch):
    return torch.randn(*batch.input_ids.shape, H, generator=torch.Generator().manual_seed(9))


@pytest.fixture
def head(toy_head):
    return toy_head(torch.randn(V, H, generator=torch.Generator().manual_seed(7)))


@pytest.fixture
def reduced(toy_head, head):
    return toy_head(head.full, torch.randperm(V, generator=torch.Generator().manual_seed(8))[:30])


def slow_chain(hidden, blocks, batch, used, full, overlap):
    """``-sum over blocks of sum_k prod_{j <= k} a_j``, slot by slot."""
    total, last = hidden.sum() * 0, last_hidden(batch)
    for n, a in blocks.supervised.any(-1).nonzero().tolist():
        product = torch.ones(())
        for i in blocks.supervised[n, a].nonzero()[:, 0].tolist():
            row = int(used.to_rows(blocks.labels[n, a, i]))
            q = used(hidden[n, a, i]).softmax(-1)
            if row < 0:
                product = product * 0
            elif overlap:
                p = full(last[n, blocks.label_positions[n, a, i] - 1]).softmax(-1)
                p = p if used.token_ids is None else p[used.token_ids]
                product = product * torch.minimum(p, q).sum()
            else:
                product = product * q[row]
            total = total - product
    return total


@pytest.mark.parametrize("first_slot", [0, 1])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prediction", [CrossEntropy(), WeightedSum([CrossEntropy(), TotalVariation()], [0.1, 1.8])])
def test_accepted_length_equals_loop(batch, head, reduced, first_slot, small, overlap, prediction):
    used = reduced if small else head
    inclusion = IntraBlockUnmasking(0.5, random_share=0.5, inner=MixedHorizon([3, 6]))
    term = AcceptedLength(2.5, NegativeLogAcceptance() if overlap else None)
    plain = Objective(inclusion, Uniform(), prediction, num_anchors=4)
    chained = Objective(inclusion, Uniform(), prediction, num_anchors=4, terms=[term], chunk_size=5)
    blocks, last = make_blocks(chained, batch, first_slot), last_hidden(batch)
    hidden = states(blocks)
    with torch.no_grad():  # leaning towards the labels, so that chains get long
        hidden += 0.5 * head.full[blocks.labels]
    base, out = plain(hidden, blocks, used, last, head), chained(hidden, blocks, used, last, head)
    assert torch.equal(base.denominator, out.denominator)
    chain = 2.5 * slow_chain(hidden, blocks, batch, used, head, overlap)
    assert chain < -1
    torch.testing.assert_close(out.numerator - base.numerator, chain, atol=1e-4, rtol=1e-5)
    got = torch.autograd.grad(out.numerator, hidden)[0] - torch.autograd.grad(base.numerator, hidden)[0]
    torch.testing.assert_close(got, torch.autograd.grad(chain, hidden)[0], atol=1e-5, rtol=1e-4)


def test_left_to_right_objective_equals_its_formula(batch, head):
    """L2R: decayed CE + focal CE at the first mismatch + chain, over the sum of the weights."""
    weighting = FirstError(0.3, False, base=ExponentialDecay(10.0))
    objective = Objective(weighting=weighting, num_anchors=50, terms=[AcceptedLength(40.0)])
    blocks = make_blocks(objective, batch)
    hidden = states(blocks)
    with torch.no_grad():  # two right slots in each block
        hidden[..., :3, :] = head.full[blocks.labels[..., :3]] * 10
    out = objective(hidden, blocks, head)
    numerator, denominator = hidden.sum() * 0, 0.0
    for n, a in blocks.supervised.any(-1).nonzero().tolist():
        wrong, product = False, 1.0
        for k, i in enumerate(blocks.supervised[n, a].nonzero()[:, 0].tolist()):
            logits, label = head(hidden[n, a, i]), blocks.labels[n, a, i]
            weight = torch.exp(torch.tensor(-k / 10.0))
            if not wrong and logits.argmax() != label:
                wrong, weight = True, weight + 0.3
            product = product * logits.softmax(-1)[label]
            numerator = numerator + weight * F.cross_entropy(logits[None], label[None]) - 40 * product
            denominator = denominator + weight
    torch.testing.assert_close(out.loss, numerator / denominator, atol=1e-4, rtol=1e-5)


def test_parts_add_up_over_batches_with_a_term(make_batch, head):
    whole = make_batch([["uaaaaaaa"], ["aaauuuuu"]])
    objective = Objective(num_anchors=50, terms=[AcceptedLength(3.0)])
    blocks = make_blocks(objective, whole)
    hidden = states(blocks)
    together = objective(hidden, blocks, head)
    parts = [
        objective(hidden[n : n + 1], type(blocks)(**{k: v[n : n + 1] for k, v in vars(blocks).items()}), head)
        for n in range(2)
    ]
    denominator = sum(p.denominator for p in parts)
    torch.testing.assert_close(sum(p.normalised(denominator) for p in parts), together.loss)


def test_what_a_term_needs(batch, head):
    assert Objective(terms=[AcceptedLength(1.0, NegativeLogAcceptance())]).needs_last_hidden
    assert not Objective(terms=[AcceptedLength()]).needs_last_hidden
    objective = Objective(terms=[AcceptedLength(1.0, NegativeLogAcceptance())])
    blocks = make_blocks(objective, batch)
    with pytest.raises(ValueError, match="last hidden states"):
        objective(states(blocks), blocks, head)
    with pytest.raises(ValueError, match="weight must be finite"):
        AcceptedLength(float("inf"))


def test_validation_takes_no_gradient(batch, head):
    objective = Objective(terms=[AcceptedLength(1.0, NegativeLogAcceptance())])
    blocks = make_blocks(objective, batch)
    with torch.no_grad():
        out = objective(states(blocks), blocks, head, last_hidden(batch))
    assert torch.isfinite(out.loss)
    assert not out.numerator.requires_grad
