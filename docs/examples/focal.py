"""A prediction: cross-entropy that counts less where the label is probable already."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from specdraft.objectives import Prediction, TargetChunk


class Focal(Prediction):
    """``(1 - q(label)) ** gamma * -log q(label)``, q being the draft's distribution; 0 is the cross-entropy.

    Args:
        gamma: How fast slots that are predicted well lose weight.
    """

    def __init__(self, gamma: float = 2.0) -> None:
        self.gamma = gamma

    @override
    def forward(self, logits: Tensor, labels: Tensor, target: TargetChunk | None) -> Tensor:
        loss = F.cross_entropy(logits.float(), labels, reduction="none")  # [n, D] and [n] to [n]
        return (1 - torch.exp(-loss)) ** self.gamma * loss
