"""Mixed horizons: blocks of several sizes in one training run."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.objectives.inclusion import FixedHorizon, Inclusion, Layout


class MixedHorizon(Inclusion):
    """Draw the horizon of every block, with matched input (DScout's mixed-horizon training).

    A block of horizon h has h slots: the anchor and h - 1 masks. It is what the drafter sees when it decodes with a
    block size of h, not a long block with a cut loss, so that every horizon can be decoded without training anew.
    DScout's equations are not public; this is our reading (block-size sampling). Early slots exist in more blocks than
    late ones, which front-loads the loss about as much as DFlash's decay does.

    Args:
        horizons: Slots of a block, the anchor included, each at most the drafter's block size. None takes the four
            quarters of the block size: 4, 8, 12, 16 for 16.
        probabilities: Probability of each horizon; None is uniform.
        initial_probabilities: Probabilities at the start of the training, for a curriculum, such as ``[1, 0, 0, 0]``;
            they move linearly to ``probabilities``. None keeps those all the time.
        curriculum: Part of the training, in (0, 1], after which the final probabilities hold.
        per_batch: Draw one horizon for all blocks of a batch; slots that do not exist are then not even computed.
        inner: Inclusion whose blocks are shortened; None is :class:`FixedHorizon`. Unmasking that is to fit into the
            shortened blocks goes around this inclusion, not inside.

    Raises:
        ValueError: If horizons, probabilities or curriculum are out of range or do not fit together.
    """

    inner: Inclusion

    def __init__(
        self,
        horizons: list[int] | None = None,
        probabilities: list[float] | None = None,
        initial_probabilities: list[float] | None = None,
        curriculum: float = 1.0,
        per_batch: bool = False,
        inner: Inclusion | None = None,
    ) -> None:
        if horizons is not None and (not horizons or min(horizons) < 1 or len(set(horizons)) != len(horizons)):
            raise ValueError(f"horizons must be different numbers of at least 1, got {horizons}")
        for name, given in (("probabilities", probabilities), ("initial_probabilities", initial_probabilities)):
            if given is not None:
                _check_probabilities(name, given, 4 if horizons is None else len(horizons))
        if not 0 < curriculum <= 1:
            raise ValueError(f"curriculum must lie in (0, 1], the part of the training it takes; got {curriculum}")
        self.horizons = horizons
        self.probabilities = probabilities
        self.initial_probabilities = initial_probabilities
        self.curriculum = curriculum
        self.per_batch = per_batch
        self.inner = inner or FixedHorizon()

    def mixture(self, block_size: int, first_slot: int) -> tuple[list[int], list[float]]:
        """Horizons and their probabilities at the present :attr:`progress`; horizons of probability 0 are left out.

        Args:
            block_size: Slots B of a full block.
            first_slot: First slot that predicts, 0 or 1.

        Raises:
            ValueError: If a horizon is larger than the block or predicts nothing.
        """
        horizons = self.horizons
        if horizons is None:
            horizons = [max(first_slot + 1, math.ceil(block_size * quarter / 4)) for quarter in (1, 2, 3, 4)]
        elif max(horizons) > block_size:
            raise ValueError(f"horizon {max(horizons)} is larger than the drafter's block size {block_size}; lower it")
        elif min(horizons) <= first_slot:
            raise ValueError(f"horizon {min(horizons)} leaves nothing to predict; use at least {first_slot + 1}")
        last = self.probabilities or [1 / len(horizons)] * len(horizons)
        first = self.initial_probabilities or last
        done = min(1.0, self.progress / self.curriculum)
        merged: dict[int, float] = {}
        for horizon, before, after in zip(horizons, first, last, strict=True):
            merged[horizon] = merged.get(horizon, 0.0) + before + done * (after - before)
        kept = {horizon: p for horizon, p in merged.items() if p > 0}
        return list(kept), list(kept.values())

    @override
    def trained_horizons(self, block_size: int, first_slot: int) -> list[int]:
        return sorted(self.mixture(block_size, first_slot)[0])

    @override
    def layout(self, known: Tensor, *, first_slot: int, generator: torch.Generator | None) -> Layout:
        out = self.inner.layout(known, first_slot=first_slot, generator=generator)
        size = known.shape[-1]
        horizons, probabilities = self.mixture(size, first_slot)
        shape = (1, 1) if self.per_batch else known.shape[:2]
        # drawn where the generator is, so that a seed means the same blocks whatever the strategy
        device = known.device if generator is None else generator.device
        edges = torch.tensor(probabilities, device=device, dtype=torch.float32).cumsum(0)
        draw = torch.rand(shape, generator=generator, device=device, dtype=torch.float32) * edges[-1]
        index = torch.searchsorted(edges, draw, right=True).clamp(max=len(horizons) - 1)
        horizon = torch.tensor(horizons, device=device)[index].to(known.device)
        width = int(horizon) if self.per_batch else max(horizons)
        slots = out.slots & (torch.arange(size, device=known.device) < horizon[..., None])
        return Layout(slots, out.revealed, min(width, size if out.width is None else out.width))


def _check_probabilities(name: str, values: list[float], count: int) -> None:
    if len(values) != count:
        raise ValueError(f"{name} {values} must hold one value for each of the {count} horizons")
    if not all(value >= 0 for value in values) or not math.isclose(math.fsum(values), 1, abs_tol=1e-6):
        raise ValueError(f"{name} {values} must not be negative and sum to 1, not to {math.fsum(values):g}")
