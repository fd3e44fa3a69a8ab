"""Weights around the first mismatch of a block, and products of weightings."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.objectives.weighting import Scores, Uniform, Weighting
from specdraft.types import BlockBatch


class FirstError(Weighting):
    """Weights that know where greedy verification stops: the first slot j* whose most probable token is no label.

    With the base weight b_j the weight is ``(b_j + focal [j = j*]) c_j``, in the template of Spec-AUF
    ``sum m w l / sum m w``:

    - AUF (arXiv 2607.01893): ``cut``, that is c_j = 1 up to and including j*, then 0.
    - L2R (arXiv 2606.11552): ``focal: 0.3``, ``cut: false`` over a decay of 10 slots.
    - VAT (arXiv 2608.30135): ``cut: false``, ``decay: 7``, that is c_j = exp(-(j - j*) / 7) from j* on.

    Args:
        focal: Added to the weight of the first mismatch.
        cut: Whether the slots behind it count nothing.
        decay: Decay length in slots behind the first mismatch, in place of a cut; None for no decay.
        base: Weight of every slot; None is :class:`Uniform`.

    Raises:
        ValueError: If ``focal`` is negative, ``decay`` not positive, both ``cut`` and ``decay`` are given, or nothing.
    """

    def __init__(
        self, focal: float = 0.0, cut: bool = True, decay: float | None = None, base: Weighting | None = None
    ) -> None:
        if not focal >= 0:
            raise ValueError(f"focal must not be negative, got {focal}")
        if decay is not None and (cut or not decay > 0):
            raise ValueError(f"decay must be positive and replaces the cut: set cut: false; got {decay} and cut {cut}")
        if not (focal or cut or decay):
            raise ValueError("without focal, cut and decay the first error changes nothing; use the base weighting")
        self.focal = focal
        self.cut = cut
        self.decay = decay
        self.base = base or Uniform()

    @property
    @override
    def needs_target(self) -> bool:
        return self.base.needs_target

    @override
    def weights(self, blocks: BlockBatch, scores: Scores) -> Tensor:
        behind = slots_behind_first_error(blocks.supervised, scores.correct)
        weights = self.base.weights(blocks, scores) + self.focal * (behind == 0)
        if self.cut:
            return weights.masked_fill(behind > 0, 0)
        return weights if self.decay is None else weights * torch.exp(-behind.clamp(min=0).float() / self.decay)


class WeightProduct(Weighting):
    """Product of weightings, such as a decay and acceptance weights.

    Args:
        factors: Weightings to multiply.

    Raises:
        ValueError: If there is none.
    """

    def __init__(self, factors: list[Weighting]) -> None:
        if not factors:
            raise ValueError("factors is empty; name at least one weighting")
        self.factors = tuple(factors)

    @property
    @override
    def needs_target(self) -> bool:
        return any(factor.needs_target for factor in self.factors)

    @override
    def weights(self, blocks: BlockBatch, scores: Scores) -> Tensor:
        return torch.stack([factor.weights(blocks, scores).float() for factor in self.factors]).prod(0)


def slots_behind_first_error(supervised: Tensor, correct: Tensor) -> Tensor:
    """Slots from the first supervised miss of each block on: 0 there, 1 behind it; negative before or without a miss.

    Args:
        supervised: ``[N, A, B]`` bool.
        correct: ``[N, A, B]`` bool.

    Returns:
        ``[N, A, B]`` int64.
    """
    miss = supervised & ~correct
    size = miss.shape[-1]
    first = torch.where(miss.any(-1, keepdim=True), miss.int().argmax(-1, keepdim=True), size)
    return torch.arange(size, device=miss.device) - first
