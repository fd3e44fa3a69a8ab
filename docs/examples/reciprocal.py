"""A weighting: the k-th draft counts 1/k."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from specdraft.objectives import Scores, Weighting
from specdraft.types import BlockBatch


class Reciprocal(Weighting):
    """Weight ``k ** -power`` at the k-th supervised slot.

    Args:
        power: How fast the weights fall.
    """

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    @override
    def weights(self, blocks: BlockBatch, scores: Scores) -> Tensor:
        k = blocks.supervised.cumsum(-1)  # [N, A, B]
        return blocks.supervised * k.clamp(min=1).float() ** -self.power
