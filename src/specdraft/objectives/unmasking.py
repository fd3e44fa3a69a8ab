"""Intra-block unmasking: show some of the block's own tokens."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.objectives.inclusion import FixedHorizon, Inclusion, Layout


class IntraBlockUnmasking(Inclusion):
    """Reveal ground-truth tokens inside some blocks; the loss stays on what is predicted (DScout).

    DScout's equations are not public. The default is our primary reading, a revealed prefix: its length l has
    ``Pr(l) ~ decay ** l`` as the variable-prefix drafter of D2SD (arXiv 2606.04446) draws it, cut so that a slot is
    left to predict. The alternative reveals random places, each with a ratio drawn from ``U(0, max_ratio)`` per block,
    as masked diffusion does. Decoding only ever sees the anchor, and drafters that mostly saw revealed tokens tend to
    repeat themselves (D-Loop, arXiv 2610.06011): blocks without revealed tokens should stay the majority.

    Args:
        probability: Probability that a block is unmasked at all, 0..1.
        random_share: Share of the unmasked blocks that reveal random places: 0 reveals prefixes only, 1 random places
            only, a value between mixes both.
        decay: Base of the geometric law of prefix lengths, in (0, 1]; 1 draws lengths uniformly.
        max_ratio: Largest ratio of random places, in (0, 1].
        inner: Inclusion whose blocks are unmasked, such as mixed horizons; None is :class:`FixedHorizon`.

    Raises:
        ValueError: If a value is out of range.
    """

    inner: Inclusion

    def __init__(
        self,
        probability: float = 0.25,
        random_share: float = 0.0,
        decay: float = 0.9,
        max_ratio: float = 0.5,
        inner: Inclusion | None = None,
    ) -> None:
        if not (0 <= probability <= 1 and 0 <= random_share <= 1):
            raise ValueError(
                f"probability and random_share must lie in [0, 1], got probability {probability} and "
                f"random_share {random_share}"
            )
        if not (0 < decay <= 1 and 0 < max_ratio <= 1):
            raise ValueError(
                f"decay and max_ratio must lie in (0, 1], got decay {decay} and max_ratio {max_ratio}; "
                "probability 0 reveals nothing"
            )
        self.probability = probability
        self.random_share = random_share
        self.decay = decay
        self.max_ratio = max_ratio
        self.inner = inner or FixedHorizon()

    @override
    def layout(self, known: Tensor, *, first_slot: int, generator: torch.Generator | None) -> Layout:
        out = self.inner.layout(known, first_slot=first_slot, generator=generator)
        device = known.device if generator is None else generator.device
        rand = partial(torch.rand, generator=generator, device=device, dtype=torch.float32)
        draws, coins = rand((4, *known.shape[:2], 1)).to(known.device), rand(known.shape).to(known.device)
        longest = longest_prefix(known, out.slots, first_slot)
        length = truncated_geometric(draws[2][..., 0], longest, self.decay)
        place = torch.arange(known.shape[-1], device=known.device)
        prefix = place <= length[..., None]
        scattered = coins < draws[3] * self.max_ratio
        shown = torch.where(draws[1] < self.random_share, scattered, prefix) & (draws[0] < self.probability)
        return Layout(out.slots, out.revealed | (shown & (place > 0)), out.width)


def longest_prefix(known: Tensor, slots: Tensor, first_slot: int) -> Tensor:
    """Longest prefix behind the anchor that leaves a slot to predict, ``[N, A]`` int64.

    Revealing l tokens leaves the label at place ``l + 1``, which has to be known and to belong to an existing slot.
    Whether the token behind the last slot is known is not looked at, which errs on the short side.

    Args:
        known: ``[N, A, B]`` bool, slots whose own token may be drafted, an unbroken run from the anchor.
        slots: ``[N, A, B]`` bool, slots that exist, the first ones of the block.
        first_slot: First slot that predicts, 0 or 1.
    """
    return torch.minimum(known.sum(-1) - 2, slots.sum(-1) - 1 - first_slot).clamp(min=0)


def truncated_geometric(uniform: Tensor, longest: Tensor, decay: float) -> Tensor:
    """Lengths in 1..longest with probability proportional to ``decay ** length``; 0 where ``longest`` is 0.

    Args:
        uniform: Draws from U(0, 1), any shape.
        longest: Largest length, int64 of the same shape.
        decay: Base in (0, 1]; 1 is uniform.
    """
    if decay == 1:
        length = torch.floor(uniform * longest).long() + 1
    else:
        # inverse of the distribution function (1 - decay^l) / (1 - decay^longest)
        mass = 1 - decay ** longest.float()
        length = torch.ceil(torch.log1p(-uniform * mass) / math.log(decay)).long().clamp(min=1)
    return torch.minimum(length, longest)
