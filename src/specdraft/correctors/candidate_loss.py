"""What a corrector that chooses among candidates learns from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override


class CandidateLoss(ABC):
    """Loss of one slot's scores of its candidates, given the ground-truth predecessor."""

    @property
    def needs_target(self) -> bool:
        """Whether the target's logits of the candidates are read."""
        return False

    @abstractmethod
    def __call__(self, scores: Tensor, place: Tensor, target_logits: Tensor | None) -> Tensor:
        """Loss per slot.

        Args:
            scores: ``[n, C]`` float32, differentiable.
            place: ``[n]`` int64, which candidate is the label.
            target_logits: ``[n, C]`` float32 of the candidates, given when :attr:`needs_target`.

        Returns:
            ``[n]`` float32.
        """


class CandidateCrossEntropy(CandidateLoss):
    """Cross-entropy of the label among the candidates."""

    @override
    def __call__(self, scores: Tensor, place: Tensor, target_logits: Tensor | None) -> Tensor:
        return F.cross_entropy(scores, place, reduction="none")


class CandidateMargin(CandidateLoss):
    """Hinge on the lead over the best other candidate, ``relu(margin - (S(label) - max_j S(j)))`` (LiLiCorr).

    Only the greedy choice matters to a greedy walk, and this loss is 0 once it is safe.

    Args:
        margin: Wanted lead, positive.

    Raises:
        ValueError: If ``margin`` is not positive.
    """

    def __init__(self, margin: float = 2.0) -> None:
        if not margin > 0:
            raise ValueError(f"margin must be positive, got {margin}")
        self.margin = margin

    @override
    def __call__(self, scores: Tensor, place: Tensor, target_logits: Tensor | None) -> Tensor:
        own = scores.gather(1, place[:, None])[:, 0]
        others = scores.scatter(1, place[:, None], float("-inf")).amax(-1)
        return torch.relu(self.margin - (own - others))


class ExpectedRegret(CandidateLoss):
    """How much worse the target likes what would be sampled, ``sum_j softmax(S)_j relu(l(label) - l(j))`` (LiLiCorr).

    ``l`` are the target's logits: choosing a token that the target finds as good as the label costs nothing.
    """

    @property
    @override
    def needs_target(self) -> bool:
        return True

    @override
    def __call__(self, scores: Tensor, place: Tensor, target_logits: Tensor | None) -> Tensor:
        if target_logits is None:
            raise ValueError("ExpectedRegret needs the target's last hidden states; extract them with the features")
        regret = torch.relu(target_logits.gather(1, place[:, None]) - target_logits)
        return (torch.softmax(scores, -1) * regret).sum(-1)


class CandidateLossSum(CandidateLoss):
    """Weighted sum of candidate losses.

    LiLiCorr (arXiv 2608.20530) publishes 0.25 cross-entropy + 0.25 regret, and 0.125 cross-entropy + 0.125 margin +
    0.25 regret.

    Args:
        terms: Losses to add.
        weights: One factor per term.

    Raises:
        ValueError: If there is no term, or not one finite weight per term.
    """

    def __init__(self, terms: list[CandidateLoss], weights: list[float]) -> None:
        if not terms or len(terms) != len(weights):
            raise ValueError(
                f"got {len(terms)} terms and {len(weights)} weights; give one weight per term, at least one"
            )
        if not all(math.isfinite(weight) for weight in weights):
            raise ValueError(f"weights must be finite, got {weights}")
        self.terms, self.weights = tuple(terms), tuple(weights)

    @property
    @override
    def needs_target(self) -> bool:
        return any(term.needs_target for term in self.terms)

    @override
    def __call__(self, scores: Tensor, place: Tensor, target_logits: Tensor | None) -> Tensor:
        losses = [w * term(scores, place, target_logits) for term, w in zip(self.terms, self.weights, strict=True)]
        return torch.stack(losses).sum(0)
