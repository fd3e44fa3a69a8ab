"""Weighting: how much each supervised slot counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.types import BlockBatch


@dataclass
class Scores:
    """How good the current predictions are, without gradients; 0 or false where a slot is not supervised.

    Attributes:
        label_prob: ``[N, A, B]`` float32, draft probability of the label.
        correct: ``[N, A, B]`` bool, whether the most probable token is the label.
        overlap: ``[N, A, B]`` float32, ``sum_v min(p, q)``, or None when the target's distribution was not computed.
    """

    label_prob: Tensor
    correct: Tensor
    overlap: Tensor | None = None


class Weighting(ABC):
    """Second factor of the objective."""

    @property
    def needs_target(self) -> bool:
        """Whether :attr:`Scores.overlap` is read, so that the target's hidden states are needed."""
        return False

    @abstractmethod
    def weights(self, blocks: BlockBatch, scores: Scores) -> Tensor:
        """Weight of every slot.

        Args:
            blocks: The blocks.
            scores: Current predictions, detached.

        Returns:
            ``[N, A, B]`` float32, not negative; values at slots that are not supervised are ignored.
        """


class Uniform(Weighting):
    """Every supervised slot counts the same."""

    @override
    def weights(self, blocks: BlockBatch, scores: Scores) -> Tensor:
        return blocks.supervised.float()


class ExponentialDecay(Weighting):
    """Weight ``exp(-(k - 1) / gamma)`` of the k-th slot from the first supervised one (DFlash, arXiv 2602.06036).

    Behind a revealed prefix of l tokens that is ``exp(-(k - l - 1) / gamma)``, as D2SD (arXiv 2606.04446) anchors it.

    Args:
        gamma: Decay length in slots. None takes 7, 5 and 4 for blocks of 16, 10 and 8 as published, linear in between:
            ``B / 2`` up to 10 slots, ``5 + (B - 10) / 3`` above; a block of a shorter horizon takes that of its own
            slots.

    Raises:
        ValueError: If ``gamma`` is not positive.
    """

    def __init__(self, gamma: float | None = None) -> None:
        if gamma is not None and not gamma > 0:
            raise ValueError(f"gamma must be positive, got {gamma}; null takes the published value for the block size")
        self.gamma = gamma

    @override
    def weights(self, blocks: BlockBatch, scores: Scores) -> Tensor:
        size = blocks.supervised.shape[-1]
        gamma = default_gammas(blocks.slots.sum(-1, keepdim=True)) if self.gamma is None else self.gamma
        first = blocks.supervised.int().argmax(-1, keepdim=True)  # [N, A, 1], the first true
        distance = (torch.arange(size, device=first.device) - first).clamp(min=0)
        return torch.exp(-distance.float() / gamma)


def default_gamma(block_size: int) -> float:
    """Published decay lengths for blocks of 8, 10 and 16 slots, continued linearly."""
    return float(default_gammas(torch.tensor(block_size)))


def default_gammas(slots: Tensor) -> Tensor:
    """:func:`default_gamma` of many blocks: float32 of the shape of ``slots``."""
    wide = slots.float()
    return torch.where(slots <= 10, wide / 2, 5 + (wide - 10) / 3)
