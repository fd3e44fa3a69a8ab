from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from specdraft.objectives import (
    CrossEntropy,
    ExponentialDecay,
    FixedHorizon,
    Inclusion,
    KLDivergence,
    Layout,
    Objective,
    TotalVariation,
)

B, H, V = 6, 8, 50


class Prefix(Inclusion):
    def __init__(self, count):
        self.count = count

    def layout(self, known, *, first_slot, generator):
        return Layout(torch.ones_like(known), (torch.arange(known.shape[2]) <= self.count).expand_as(known))


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


@pytest.fixture
def reduced(toy_head, head):
    return toy_head(head.full, torch.randperm(V, generator=torch.Generator().manual_seed(8))[:30])


def slow(hidden, blocks, batch, head, full, loss, weight):
    """Numerator and denominator slot by slot; ``weight(k)`` of the k-th slot from the first supervised one."""
    numerator, denominator = hidden.sum() * 0, 0.0
    last = last_hidden(batch)
    for n, a in blocks.valid.nonzero().tolist():
        supervised = blocks.supervised[n, a].nonzero()[:, 0].tolist()
        for i in supervised:
            row = head.to_rows(blocks.labels[n, a, i]).item()
            if row < 0:
                continue
            logits = head(hidden[n, a, i])
            target = full(last[n, blocks.label_positions[n, a, i] - 1]).softmax(-1)
            if loss == "tv":
                q = torch.zeros(V)
                q[torch.arange(V) if head.token_ids is None else head.token_ids] = logits.softmax(-1)
                value = 0.5 * (q - target).abs().sum()
            else:
                value = F.cross_entropy(logits[None], torch.tensor([row]))
            w = weight(i - supervised[0] + 1)
            numerator, denominator = numerator + w * value, denominator + w
    return numerator, denominator


@pytest.mark.parametrize("first_slot", [0, 1])
@pytest.mark.parametrize("kind", ["ce", "tv"])
@pytest.mark.parametrize("small", [False, True])
def test_objective_equals_loop(batch, head, reduced, first_slot, kind, small):
    prediction = TotalVariation() if kind == "tv" else CrossEntropy()
    objective = Objective(weighting=ExponentialDecay(2.0), prediction=prediction, num_anchors=3, chunk_size=5)
    blocks = make_blocks(objective, batch, first_slot)
    hidden = states(blocks)
    used = reduced if small else head
    out = objective(hidden, blocks, used, last_hidden(batch), head)
    numerator, denominator = slow(hidden, blocks, batch, used, head, kind, lambda k: math.exp(-(k - 1) / 2))
    torch.testing.assert_close(out.numerator, numerator, atol=1e-5, rtol=1e-5)
    assert out.denominator.item() == pytest.approx(denominator, rel=1e-5)
    torch.testing.assert_close(out.loss, numerator / denominator, atol=1e-5, rtol=1e-5)
    got, expected = (torch.autograd.grad(x, hidden)[0] for x in (out.numerator, numerator))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert (out.dropped > 0) == small


@pytest.mark.parametrize("small", [False, True])
def test_predictions_and_accuracy(batch, head, reduced, small):
    objective, used = Objective(num_anchors=50), reduced if small else head
    blocks = make_blocks(objective, batch)
    hidden = states(blocks)
    with torch.no_grad():  # half of the slots point at their label
        right = torch.rand(blocks.labels.shape, generator=torch.Generator().manual_seed(2)) < 0.5
        hidden[right] = head.full[blocks.labels[right]] * 10
    out = objective(hidden, blocks, used)
    dropped = 0
    for n, a, i in blocks.slots.nonzero().tolist():
        if not blocks.supervised[n, a, i]:
            assert out.predicted_ids[n, a, i] == -1
            assert out.weights[n, a, i] == out.label_prob[n, a, i] == 0
            assert not out.correct[n, a, i]
            continue
        logits, label = used(hidden[n, a, i]), int(blocks.labels[n, a, i])
        row = int(used.to_rows(torch.tensor(label)))
        assert out.predicted_ids[n, a, i] == used.to_ids(logits.argmax())
        assert bool(out.correct[n, a, i]) == (row >= 0 and int(logits.argmax()) == row)
        assert out.label_prob[n, a, i].item() == pytest.approx(
            logits.softmax(-1)[row].item() if row >= 0 else 0, abs=1e-5
        )
        assert (out.weights[n, a, i] == 0) == (row < 0)
        dropped += row < 0
    assert 0 < out.correct.sum() < out.supervised == blocks.supervised.sum()
    assert out.dropped == dropped
    assert (dropped > 0) == small


def test_loss_does_not_depend_on_the_number_of_anchors(make_batch, head):
    batch = make_batch([["a" * 80]])
    batch.input_ids.fill_(3)
    one_state = torch.randn(B, H, generator=torch.Generator().manual_seed(1))
    losses = []
    for count in (4, 64):
        objective = Objective(num_anchors=count)
        blocks = make_blocks(objective, batch)
        keep = blocks.anchors < 70  # whole blocks only, all alike
        blocks.supervised &= keep[..., None]
        losses.append(objective(one_state.expand(*blocks.tokens.shape, H), blocks, head).loss)
    torch.testing.assert_close(losses[0], losses[1])


def test_parts_add_up_over_batches(make_batch, head):
    rows = [["uaaaaaaa"], ["aaauuuuu"]]
    objective = Objective(num_anchors=50)
    whole = make_batch(rows)
    blocks = make_blocks(objective, whole)
    hidden = states(blocks)
    together = objective(hidden, blocks, head)
    parts = []
    for n in range(2):
        part = type(blocks)(**{k: v[n : n + 1] for k, v in vars(blocks).items()})
        parts.append(objective(hidden[n : n + 1], part, head))
    denominator = sum(p.denominator for p in parts)
    torch.testing.assert_close(sum(p.normalised(denominator) for p in parts), together.loss)
    assert abs(sum(p.loss for p in parts) / 2 - together.loss) > 1e-3  # a mean of means would be another number


def test_no_supervised_slot_gives_zero_and_keeps_the_graph(make_batch, head):
    objective = Objective()
    blocks = make_blocks(objective, make_batch([["uuuu"]]))
    hidden = states(blocks)
    out = objective(hidden, blocks, head)
    assert out.numerator == out.denominator == out.loss == out.supervised == 0
    out.loss.backward()
    assert (hidden.grad == 0).all()


def test_soft_losses_ask_for_the_target(batch, head):
    assert not Objective().needs_last_hidden
    objective = Objective(prediction=KLDivergence())
    assert objective.needs_last_hidden
    blocks = make_blocks(objective, batch)
    with pytest.raises(ValueError, match="last hidden states"):
        objective(states(blocks), blocks, head)


def test_soft_loss_vanishes_for_the_targets_own_states(batch, head):
    for first_slot in (0, 1):
        objective = Objective(prediction=KLDivergence(), num_anchors=50)
        blocks, last = make_blocks(objective, batch, first_slot), last_hidden(batch)
        offset = torch.arange(B) - first_slot  # slot i predicts from the token before its label
        index = (blocks.anchors[..., None] + offset).clamp(0, last.shape[1] - 1)
        hidden = last[torch.arange(len(last))[:, None, None], index]
        assert objective(hidden, blocks, head, last).loss.abs() < 1e-6


def test_validation_blocks_are_plain_and_repeatable(batch):
    objective = Objective(inclusion=Prefix(2))
    args = {"block_size": B, "first_slot": 1, "mask_token_id": V - 1, "limit": 3}
    one, two = (objective.validation_blocks(batch, **args) for _ in range(2))
    assert all(torch.equal(vars(one)[name], vars(two)[name]) for name in vars(one))
    assert (one.tokens[..., 1:] == V - 1).all()


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="got 0 and None"):
        Objective(num_anchors=0)
    with pytest.raises(ValueError, match="got 64 and 0"):
        Objective(chunk_size=0)


def test_defaults_are_dflash():
    objective = Objective()
    assert type(objective.inclusion) is FixedHorizon
    assert type(objective.weighting) is ExponentialDecay
    assert type(objective.prediction) is CrossEntropy
    assert objective.weighting.gamma is None
