"""Terms over whole blocks, added to the sum over slots."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.objectives.prediction import CrossEntropy, Prediction


class BlockTerm(ABC):
    """Term of the objective that couples the slots of a block.

    It is made from a differentiable loss of every slot. Its sum over blocks joins the numerator of the objective, so
    that one denominator, ``sum m w``, normalises everything, and accumulation and ranks change nothing.

    Attributes:
        prediction: Loss of one slot that the term is made from.
    """

    prediction: Prediction

    @abstractmethod
    def values(self, losses: Tensor, supervised: Tensor, counted: Tensor) -> Tensor:
        """Value of every block.

        Args:
            losses: ``[N, A, B]`` float32 losses of :attr:`prediction`, differentiable, 0 where not supervised.
            supervised: ``[N, A, B]`` bool.
            counted: ``[N, A, B]`` bool, the supervised slots whose label the draft vocabulary holds.

        Returns:
            ``[N, A]`` float32, 0 for a block without a supervised slot.
        """


class AcceptedLength(BlockTerm):
    """Minus the expected accepted length, ``-weight sum_k prod_{j <= k} a_j``: L2R's chain term (arXiv 2606.11552).

    With cross-entropy a_j is the draft's probability of the label, as published (weight 40 with 16 slots; 50 hurts).
    With :class:`specdraft.objectives.NegativeLogAcceptance` a_j is ``sum_v min(p, q)``, the end-to-end total variation
    of AngelSpec and EDR. Beside uniform weights the term is the accepted share ``E[A] / K`` of each block.

    Args:
        weight: Factor of the term.
        prediction: Slot loss whose ``exp(-loss)`` is the chance a_j of being accepted; None is cross-entropy.

    Raises:
        ValueError: If ``weight`` is not finite.
    """

    def __init__(self, weight: float = 40.0, prediction: Prediction | None = None) -> None:
        if not math.isfinite(weight):
            raise ValueError(f"weight must be finite, got {weight}")
        self.weight = weight
        self.prediction = prediction or CrossEntropy()

    @override
    def values(self, losses: Tensor, supervised: Tensor, counted: Tensor) -> Tensor:
        # a label outside the draft vocabulary ends the chain; a revealed slot neither lengthens nor ends it
        alive = (supervised & ~counted).cumsum(-1) == 0
        chain = torch.exp(-losses.masked_fill(~counted, 0).cumsum(-1))
        return -self.weight * chain.masked_fill(~(alive & supervised), 0).sum(-1)
