"""LK losses (arXiv 2602.23881): train the acceptance rate itself, ``alpha = sum_v min(p, q)``."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.objectives.prediction import DraftChunk, KLDivergence, Prediction, TargetChunk, TotalVariation

SMALLEST_ACCEPTANCE = 1e-6


class NegativeLogAcceptance(Prediction):
    """``-log sum_v min(p, q)``, the likelihood of being accepted (LK, arXiv 2602.23881).

    Its gradient is that of the total variation divided by the acceptance, so that rejected slots pull hardest. An
    acceptance below 1e-6 counts as 1e-6, without gradient.
    """

    def __init__(self) -> None:
        self._distance = TotalVariation()

    @property
    @override
    def needs_target(self) -> bool:
        return True

    @override
    def forward(self, logits: Tensor, labels: Tensor, target: TargetChunk | None) -> Tensor:
        return -(1 - self._distance.forward(logits, labels, target)).clamp(min=SMALLEST_ACCEPTANCE).log()

    @override
    def fused(
        self, draft: DraftChunk, labels: Tensor, target: TargetChunk | None, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        distance, slope = self._distance.fused(draft, labels, target, gradient)
        acceptance = (1 - distance).clamp(min=SMALLEST_ACCEPTANCE)
        if slope is not None:
            slope.mul_(torch.where(acceptance > SMALLEST_ACCEPTANCE, 1 / acceptance, 0)[:, None])
        return -acceptance.log(), slope


class LKHybrid(Prediction):
    """``lambda KL(p || q) + (1 - lambda) TV`` with ``lambda = exp(-eta alpha)`` (LK, arXiv 2602.23881).

    Where the draft is poor the divergence leads, where it is good the acceptance itself; lambda is detached.

    Args:
        eta: How fast the total variation takes over; 0 is the divergence alone.

    Raises:
        ValueError: If ``eta`` is negative.
    """

    def __init__(self, eta: float = 3.0) -> None:
        if not eta >= 0:
            raise ValueError(f"eta must not be negative, got {eta}")
        self.eta = eta
        self._divergence, self._distance = KLDivergence(), TotalVariation()

    @property
    @override
    def needs_target(self) -> bool:
        return True

    @override
    def forward(self, logits: Tensor, labels: Tensor, target: TargetChunk | None) -> Tensor:
        distance = self._distance.forward(logits, labels, target)
        share = self._share(distance.detach())
        return share * self._divergence.forward(logits, labels, target) + (1 - share) * distance

    @override
    def fused(
        self, draft: DraftChunk, labels: Tensor, target: TargetChunk | None, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        own = replace(draft, probs=draft.probs.clone()) if gradient else draft  # each may overwrite its copy
        distance, slope = self._distance.fused(own, labels, target, gradient)
        divergence, other = self._divergence.fused(draft, labels, target, gradient)
        share = self._share(distance)
        if slope is not None and other is not None:
            slope = slope.mul_((1 - share)[:, None]).add_(other * share[:, None])
        return share * divergence + (1 - share) * distance, slope

    def _share(self, distance: Tensor) -> Tensor:
        return torch.exp(-self.eta * (1 - distance))
