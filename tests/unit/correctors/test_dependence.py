"""What correctors are for: tokens that determine each other where every slot alone is ambiguous."""

from __future__ import annotations

import pytest
import torch
from corrector_world import NAMES, World

from specdraft.correctors import NoCorrector
from specdraft.objectives import CrossEntropy, SlotLoss
from specdraft.targets import FrozenHead

VOCAB, SLOTS, LIKELY = 16, 5, 0.6


def blocks(count, g):
    """Chains x -> x + 1 from one of two starts; a slot's marginal has both chains, and odd slots prefer the rarer."""
    anchor = torch.randint(VOCAB, (count, 1), generator=g)
    steps = torch.arange(SLOTS)
    first, second = (anchor + 1 + steps) % VOCAB, (anchor + 6 + steps) % VOCAB
    labels = torch.where(torch.rand(count, 1, generator=g) < LIKELY, first, second)
    prefer = torch.where(steps % 2 == 0, 0.4, -0.4)[None, :, None]
    one_hot = torch.nn.functional.one_hot
    hidden = (4 + prefer) * one_hot(first, VOCAB) + (4 - prefer) * one_hot(second, VOCAB)
    return anchor, labels, hidden + 0.3 * torch.randn(count, SLOTS, VOCAB, generator=g)


def mat(corrector, world, g):
    anchor, labels, hidden = blocks(2000, g)
    with torch.no_grad():
        tokens = corrector.propose(hidden, world.head(hidden), anchor[:, 0], 0.0, None, world.head).tokens
    return 1 + float((tokens == labels).long().cumprod(-1).sum(-1).float().mean())


@pytest.mark.parametrize("name", ["none", *NAMES])
def test_order_one_process(name):
    world, g = World(vocab=VOCAB, width=VOCAB), torch.Generator().manual_seed(0)
    world.head = FrozenHead(torch.eye(VOCAB))
    oracle = 1 + LIKELY * SLOTS
    if name == "none":
        assert mat(NoCorrector(world.spec), world, g) < 0.6 * oracle
        return
    corrector = world.make(name, trained=False)
    optimizer = torch.optim.Adam(corrector.parameters(), lr=0.02)
    for _ in range(400):
        anchor, labels, hidden = blocks(64, g)
        batch = world.batch(
            chunk_size=1000,
            hidden=hidden,
            labels=labels,
            rows=labels,
            previous=torch.cat([anchor, labels[:, :-1]], 1),
            counted=torch.ones_like(labels, dtype=torch.bool),
            weights=torch.full(labels.shape, 1 / labels.numel()),
            loss=SlotLoss(CrossEntropy(), labels.flatten(), world.head, None, world.head),
        )
        optimizer.zero_grad()
        corrector(batch).numerator.backward()
        optimizer.step()
    assert mat(corrector, world, g) > 0.9 * oracle
