"""What a training step draws."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from specdraft.seeds import generator_of, seeded

CPU = torch.device("cpu")


def mask(*where):
    with seeded(CPU, *where):
        return F.dropout(torch.ones(256), 0.5)


def test_dropout_depends_on_the_numbers_alone():
    first = mask(1, 0, 3, 0)
    torch.rand(7)
    assert mask(1, 0, 3, 0).equal(first)
    # seed, epoch, batch and rank
    for other in ((2, 0, 3, 0), (1, 1, 3, 0), (1, 0, 4, 0), (1, 0, 3, 1)):
        assert not mask(*other).equal(first), other


def test_what_is_drawn_elsewhere_goes_on_undisturbed():
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    one = torch.rand(2)
    mask(1, 0, 0, 0)
    assert torch.cat([one, torch.rand(2)]).equal(expected)


def test_dropout_is_not_the_draw_of_the_anchors():
    where = (3, 0, 0, 0)
    with seeded(CPU, *where):
        drawn = torch.rand(64)
    assert not drawn.equal(torch.rand(64, generator=generator_of(CPU, *where)))
