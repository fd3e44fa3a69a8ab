"""Weightings."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from specdraft.objectives import Scores, Weighting
from specdraft.types import BlockBatch


class FirstSlots(Weighting):
    """Only the first supervised slots of a block count.

    Args:
        count: How many.

    Raises:
        ValueError: If ``count`` is below 1.
    """

    def __init__(self, count: int = 2) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        self.count = count

    @override
    def weights(self, blocks: BlockBatch, scores: Scores) -> Tensor:
        return (blocks.supervised & (blocks.supervised.cumsum(-1) <= self.count)).float()
