"""Confidences: size, start, loss, what they learn, and when they are known."""

from __future__ import annotations

import pytest
import torch

from specdraft.correctors import MarkovCorrector
from specdraft.correctors.confidence import MAX_POSITIONS, ConfidenceHead
from specdraft.types import TargetSpec

KINDS = ("vanilla", "gated", "rnn")


def test_size_is_one_linear_layer():
    with torch.device("meta"):
        spec = TargetSpec("qwen3", 2560, 151_936, 36, head_dim=128)
        counts = [sum(p.numel() for p in MarkovCorrector(spec, confidence=c).parameters()) for c in (False, True)]
    assert counts[1] - counts[0] == 2560 + 256 + 1


@pytest.mark.parametrize("kind", KINDS)
def test_starts_undecided(world, kind):
    world = world()
    hidden = world.hidden(3)
    corrector = world.make(kind, trained=False, confidence=True)
    args = (hidden, world.head(hidden), torch.arange(3), 0.0, None, world.head)
    proposal = corrector.propose(*args)
    assert proposal.confidence.tolist() == [[0.5] * 5] * 3
    assert proposal.limit is None
    assert world.make(kind).propose(*args).confidence is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("soft", [False, True])
def test_loss_equals_the_definition(world, kind, soft):
    world = world(True)
    plain, rated = world.make(kind), world.make(kind, confidence=True)
    rated.load_state_dict(plain.state_dict(), strict=False)
    batch = world.batch(hidden=world.hidden(6).requires_grad_())
    share = torch.rand(30, generator=world.g)
    if soft:
        batch.overlap = lambda logits, index: share[index]
    one, other = plain(batch), rated(batch)
    assert other.predicted_ids.equal(one.predicted_ids)
    expected, losses = one.numerator.detach(), []
    weight, bias = rated.confidence.output.weight[0].detach(), float(rated.confidence.output.bias.detach())
    for n in range(6):
        for k in range(5):
            if not batch.counted[n, k]:
                continue
            state = torch.cat([batch.hidden[n, k].detach(), rated.predecessor.weight[batch.previous[n, k]].detach()])
            c = torch.sigmoid(weight @ state + bias)
            hit = float(other.predicted_ids[n, k] == batch.labels[n, k])
            a = float(share[5 * n + k]) if soft else hit
            losses.append(-(a * c.log() + (1 - a) * (1 - c).log()))
            expected = expected + batch.weights[n, k] * losses[-1]
    torch.testing.assert_close(other.numerator.detach(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.diagnostics["confidence_loss"], torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    seen = other.confidence
    assert seen.positions.tolist() == [k for n in range(6) for k in range(5) if batch.counted[n, k]]
    assert not seen.logits.requires_grad
    # the drafter and the walk learn nothing from it
    gradients = [
        torch.autograd.grad(c.numerator, [batch.hidden, m.predecessor.weight])
        for c, m in ((one, plain), (other, rated))
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
    other = rated(batch)
    other.numerator.backward()
    assert rated.confidence.output.weight.grad.any()


def test_learns_where_drafts_are_accepted(world):
    """Slots whose first hidden unit is positive are right three times in four, the others never."""
    world = world()
    corrector = world.make("vanilla", trained=False, confidence=True)
    optimizer = torch.optim.Adam(corrector.confidence.parameters(), lr=0.05)
    for _ in range(150):
        hidden = world.hidden(32)
        hidden[..., 0] = hidden[..., 0].sign()
        batch = world.batch(count=32, hidden=hidden)
        flags = (hidden[..., 0] > 0).flatten()
        batch.overlap = lambda logits, index, flags=flags: 0.75 * flags[index].float()
        optimizer.zero_grad()
        corrector(batch).numerator.backward()
        optimizer.step()
    hidden = world.hidden(200)
    hidden[..., 0] = hidden[..., 0].sign()
    confidence = corrector.propose(hidden, world.head(hidden), torch.arange(200) % 23, 0.0, None, world.head).confidence
    assert float(confidence[hidden[..., 0] > 0].mean()) == pytest.approx(0.75, abs=0.1)
    assert float(confidence[hidden[..., 0] < 0].mean()) < 0.1


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_confidence_never_sees_its_own_draft(world, kind):
    """Draft k decides the confidences behind it, and no other one: they may stop the block before k is drawn."""
    world = world()
    corrector = world.make(kind, confidence=True)
    hidden = world.hidden(1).expand(400, -1, -1)
    args = (hidden, world.head(hidden), torch.full((400,), 2), 2.0)
    proposal = corrector.propose(*args, torch.Generator().manual_seed(0), world.head)
    assert proposal.confidence[:, 0].unique().numel() == 1
    for k in range(1, 5):
        prefixes, where = proposal.tokens[:, :k].unique(dim=0, return_inverse=True)
        for i in range(len(prefixes)):
            assert proposal.confidence[where == i, k].unique().numel() == 1
    assert proposal.confidence[:, 1].unique().numel() > 1


@torch.no_grad()
def test_teacher_forced_and_walked_confidences_agree(world):
    world = world()
    corrector = world.make("gated", confidence=True)
    corrector.confidence.calibrate(torch.tensor([2.0, 0.5, 1.0, 1.5, 3.0]))
    batch = world.batch()
    batch.counted[:] = True
    proposal = corrector.propose(batch.hidden, world.head(batch.hidden), batch.previous[:, 0], 0.0, None, world.head)
    batch.previous = torch.cat([batch.previous[:, :1], proposal.tokens[:, :-1]], 1)
    logits = corrector(batch).confidence.logits.view(6, 5)
    torch.testing.assert_close(torch.sigmoid(logits / torch.tensor([2.0, 0.5, 1.0, 1.5, 3.0])), proposal.confidence)


def test_temperatures_are_stored_and_checked():
    head = ConfidenceHead(3, 2)
    head.calibrate(torch.tensor([2.0, 0.5]))
    other = ConfidenceHead(3, 2)
    other.load_state_dict(head.state_dict())
    assert other.temperatures[:3].tolist() == [2.0, 0.5, 0.5]
    logits = torch.ones(1, MAX_POSITIONS + 3)
    expected = torch.sigmoid(torch.tensor([0.5, 2.0, 2.0])).tolist()
    assert head.calibrated(logits)[0, [0, 1, -1]].tolist() == pytest.approx(expected)
    with pytest.raises(ValueError, match="temperatures must be positive"):
        head.calibrate(torch.tensor([1.0, 0.0]))
