"""Prediction loss: what one slot should predict.

With a reduced draft vocabulary the draft gives no mass to tokens outside of it; each soft loss says what it does with
the target's mass there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override


@dataclass
class TargetChunk:
    """Target's distribution over the draft vocabulary.

    Attributes:
        logits: ``[n, D]`` float32, target logits of the draft vocabulary's tokens.
        log_z: ``[n]`` float32, log-normaliser over the *whole* vocabulary: ``p = exp(logits - log_z)``.
    """

    logits: Tensor
    log_z: Tensor

    @property
    def probs(self) -> Tensor:
        """``[n, D]`` true probabilities; what is missing to 1 lies outside the draft vocabulary."""
        return torch.exp(self.logits - self.log_z[:, None])


@dataclass
class DraftChunk:
    """Draft's distribution, with what is computed once for all uses; no gradients.

    Attributes:
        logits: ``[n, D]``.
        probs: ``[n, D]`` float32 softmax. A fused loss may overwrite it.
        log_z: ``[n]`` float32 log-normaliser.
    """

    logits: Tensor
    probs: Tensor
    log_z: Tensor


class Prediction(ABC):
    """Third factor of the objective: loss of one slot.

    A subclass writes :meth:`forward`; gradients come from autograd. It may also write :meth:`fused` in closed form,
    which must agree with :meth:`forward`.
    """

    @property
    def needs_target(self) -> bool:
        """Whether the target's distribution is read."""
        return False

    @abstractmethod
    def forward(self, logits: Tensor, labels: Tensor, target: TargetChunk | None) -> Tensor:
        """Loss per position.

        Args:
            logits: ``[n, D]`` draft logits.
            labels: ``[n]`` int64 row of each label in the draft vocabulary.
            target: Target's distribution, given when :attr:`needs_target`.

        Returns:
            ``[n]`` float32.
        """

    def fused(
        self, draft: DraftChunk, labels: Tensor, target: TargetChunk | None, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Loss ``[n]`` and, if asked for, its gradient ``[n, D]`` with respect to the logits, both detached."""
        if not gradient:
            return self.forward(draft.logits, labels, target), None
        with torch.enable_grad():
            logits = draft.logits.detach().requires_grad_()
            loss = self.forward(logits, labels, target)
            (grad,) = torch.autograd.grad(loss.sum(), logits)
        return loss.detach(), grad


class CrossEntropy(Prediction):
    """Cross-entropy with the label.

    Args:
        label_smoothing: Share of the label's mass that is spread over the whole draft vocabulary, below 1.

    Raises:
        ValueError: If ``label_smoothing`` is outside 0..1.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
        self.label_smoothing = label_smoothing

    @override
    def forward(self, logits: Tensor, labels: Tensor, target: TargetChunk | None) -> Tensor:
        return F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=self.label_smoothing)

    @override
    def fused(
        self, draft: DraftChunk, labels: Tensor, target: TargetChunk | None, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        smooth, rows = self.label_smoothing, labels[:, None]
        loss = draft.log_z - (1 - smooth) * draft.logits.gather(1, rows)[:, 0].float()
        if smooth:
            loss = loss - smooth * draft.logits.mean(-1, dtype=torch.float32)
        if not gradient:
            return loss, None
        grad = draft.probs.scatter_add_(1, rows, torch.full_like(rows, smooth - 1, dtype=torch.float32))
        return loss, grad.sub_(smooth / grad.shape[1]) if smooth else grad


class KLDivergence(Prediction):
    """``KL(p || q)`` from the target to the draft, both at one temperature.

    The target is restricted to the draft vocabulary and renormalised there. The loss carries the usual factor
    ``temperature ** 2``, which keeps gradients comparable between temperatures.

    Args:
        temperature: Temperature of both distributions, positive.

    Raises:
        ValueError: If ``temperature`` is not positive.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature

    @property
    @override
    def needs_target(self) -> bool:
        return True

    @override
    def forward(self, logits: Tensor, labels: Tensor, target: TargetChunk | None) -> Tensor:
        log_p = torch.log_softmax(_given(target, self).logits / self.temperature, -1)
        log_q = torch.log_softmax(logits.float() / self.temperature, -1)
        return (log_p.exp() * (log_p - log_q)).sum(-1) * self.temperature**2


class TotalVariation(Prediction):
    """Total variation distance, **half** the L1 norm: ``1 - sum_v min(p, q)``, the chance that a draft is rejected.

    A weight for the plain L1 norm, as DSpark (arXiv 2607.05147) writes it, has to be doubled here. The target's mass
    outside the draft vocabulary counts as missed.
    """

    @property
    @override
    def needs_target(self) -> bool:
        return True

    @override
    def forward(self, logits: Tensor, labels: Tensor, target: TargetChunk | None) -> Tensor:
        p = _given(target, self).probs
        inside = (p - torch.softmax(logits.float(), -1)).abs().sum(-1)
        return 0.5 * (inside + (1 - p.sum(-1)).clamp(min=0))

    @override
    def fused(
        self, draft: DraftChunk, labels: Tensor, target: TargetChunk | None, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        p, q = _given(target, self).probs, draft.probs
        loss = 1 - torch.minimum(p, q).sum(-1)
        if not gradient:
            return loss, None
        # d/dlogit of sum_v s_v q_v with s = sign(q - p) / 2 is q (s - sum_v s_v q_v)
        slope = torch.sub(q, p, out=p).sign_().mul_(0.5)
        mean = (slope * q).sum(-1, keepdim=True)
        return loss, slope.sub_(mean).mul_(q)


class WeightedSum(Prediction):
    """Weighted sum of losses.

    Args:
        terms: Losses to add.
        weights: One factor per term.

    Raises:
        ValueError: If there is no term, or not one finite weight per term.
    """

    def __init__(self, terms: list[Prediction], weights: list[float]) -> None:
        if not terms or len(terms) != len(weights):
            raise ValueError(
                f"got {len(terms)} terms and {len(weights)} weights; give one weight per term, at least one"
            )
        if not all(math.isfinite(weight) for weight in weights):
            raise ValueError(f"weights must be finite, got {weights}")
        self.terms: Sequence[Prediction] = tuple(terms)
        self.weights: Sequence[float] = tuple(weights)

    @property
    @override
    def needs_target(self) -> bool:
        return any(term.needs_target for term in self.terms)

    @override
    def forward(self, logits: Tensor, labels: Tensor, target: TargetChunk | None) -> Tensor:
        losses = [
            weight * term.forward(logits, labels, target) for term, weight in zip(self.terms, self.weights, strict=True)
        ]
        return torch.stack(losses).sum(0)

    @override
    def fused(
        self, draft: DraftChunk, labels: Tensor, target: TargetChunk | None, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        total, total_grad = torch.zeros_like(draft.log_z), None
        for term, weight in zip(self.terms, self.weights, strict=True):
            own = replace(draft, probs=draft.probs.clone()) if gradient else draft  # a term may overwrite its copy
            loss, grad = term.fused(own, labels, target, gradient)
            total = total + weight * loss
            if grad is not None:
                grad = grad.mul_(weight)
                total_grad = grad if total_grad is None else total_grad.add_(grad)
        return total, total_grad


def _given(target: TargetChunk | None, loss: Prediction) -> TargetChunk:
    if target is None:
        raise ValueError(f"{type(loss).__name__} needs the target's last hidden states; extract them with the features")
    return target
