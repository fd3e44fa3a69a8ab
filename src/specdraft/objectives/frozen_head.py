"""Loss through the frozen vocabulary projection without ever holding all logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from specdraft.objectives.prediction import DraftChunk, Prediction, TargetChunk
from specdraft.types import Head


@dataclass
class HeadLoss:
    """Loss and scores of n positions.

    Attributes:
        loss: ``[n]`` float32, differentiable in the hidden states; any weight may be applied to it afterwards.
        label_prob: ``[n]`` float32 draft probability of the label.
        predicted: ``[n]`` int64 most probable row.
        overlap: ``[n]`` float32 ``sum_v min(p, q)``, or None without the target's hidden states.
    """

    loss: Tensor
    label_prob: Tensor
    predicted: Tensor
    overlap: Tensor | None


def frozen_head_loss(
    hidden: Tensor,
    head: Head,
    rows: Tensor,
    prediction: Prediction,
    target_hidden: Tensor | None,
    target_head: Head | None,
    chunk_size: int | None = None,
) -> HeadLoss:
    """Loss of each position, with its gradient computed on the way.

    The head is frozen, so the gradient of a position's loss with respect to its hidden state is known as soon as its
    logits are. Chunk by chunk it replaces the logits; what is kept is ``[n, H]``, and the backward pass is one
    multiplication by the incoming gradient of each position. Without gradients (validation) only losses are computed.

    Args:
        hidden: ``[n, H]``, any floating-point dtype.
        head: Frozen head over the draft vocabulary.
        rows: ``[n]`` int64, row of each label in the head.
        prediction: Loss of one position.
        target_hidden: ``[n, H]`` target hidden states that predict the labels, or None.
        target_head: The target's whole head; None if ``head`` is it.
        chunk_size: Positions whose logits exist at a time, at least 1; None is :func:`default_chunk_size`.

    Raises:
        ValueError: If ``chunk_size`` is below 1, or the target's distribution is needed and cannot be computed.
    """
    if chunk_size is None:
        chunk_size = default_chunk_size(head.weight.shape[0], hidden.device)
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    if prediction.needs_target and target_hidden is None:
        raise ValueError(f"{type(prediction).__name__} needs the target's last hidden states; extract them as well")
    if target_hidden is not None and target_head is None and head.token_ids is not None:
        raise ValueError("the head is reduced to the draft vocabulary; pass the target's whole head as target_head")
    want = torch.is_grad_enabled() and hidden.requires_grad
    count = hidden.shape[0]
    loss, label_prob, overlap = torch.empty(3, count, dtype=torch.float32, device=hidden.device)
    predicted = torch.empty(count, dtype=torch.int64, device=hidden.device)
    grad = torch.empty_like(hidden, requires_grad=False) if want else None
    for start in range(0, count, chunk_size):
        part = slice(start, start + chunk_size)
        # all logits are local to the call, so that those of one chunk are gone before the next begins
        target = None if target_hidden is None else _target_chunk(target_hidden[part], head, target_head or head)
        chunk, chunk_grad = _chunk_loss(hidden[part].detach(), head, rows[part], prediction, target, want)
        loss[part], label_prob[part], predicted[part] = chunk.loss, chunk.label_prob, chunk.predicted
        if chunk.overlap is not None:
            overlap[part] = chunk.overlap
        if grad is not None and chunk_grad is not None:
            grad[part] = chunk_grad
        del target
    if grad is not None:
        loss = _KnownGradient.apply(hidden, loss, grad)
    return HeadLoss(loss, label_prob, predicted, None if target_hidden is None else overlap)


def default_chunk_size(rows: int, device: torch.device) -> int:
    """Chunk whose float32 logits fill about 32 MiB on a CPU and 1 GiB elsewhere, a power of two and at least 64.

    Larger blocks are handed back to the system by the C allocator of Linux as soon as they are freed, and mapping them
    anew costs a CPU more than the softmax; an accelerator needs large chunks to be busy.

    Args:
        rows: Rows D of the head.
        device: Where the logits are.
    """
    elements = 2**23 if device.type == "cpu" else 2**28
    return max(64, 1 << int(math.log2(max(1, elements // rows))))


def _chunk_loss(
    hidden: Tensor, head: Head, rows: Tensor, prediction: Prediction, target: TargetChunk | None, want: bool
) -> tuple[HeadLoss, Tensor | None]:
    """Loss of one chunk and, if wanted, its gradient ``[c, H]``; both detached."""
    hidden.requires_grad_(want)
    with torch.set_grad_enabled(want):
        logits = head(hidden)
    with torch.no_grad():
        draft, predicted = _draft_chunk(logits.detach())
        label_prob = torch.exp(draft.logits.gather(1, rows[:, None])[:, 0].float() - draft.log_z)
        overlap = None if target is None else torch.minimum(target.probs, draft.probs).sum(-1)
        loss, slope = prediction.fused(draft, rows, target, want)
    grad = None if slope is None else torch.autograd.grad(logits, hidden, slope.to(logits.dtype))[0]
    return HeadLoss(loss, label_prob, predicted, overlap), grad


class _KnownGradient(torch.autograd.Function):
    """A per-position loss whose gradient with respect to the hidden state is known already."""

    @staticmethod
    @override
    def forward(ctx: Any, hidden: Tensor, loss: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(grad)
        return loss.clone()

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * outer[0][:, None].to(grad.dtype), None, None


def _draft_chunk(logits: Tensor) -> tuple[DraftChunk, Tensor]:
    """Softmax, log-normaliser and most probable row ``[n]``.

    The log-normaliser is the largest logit minus the logarithm of its probability, which is at least ``1 / D``: two
    passes over the logits give everything, and nothing underflows.
    """
    top, predicted = logits.max(-1)
    probs = torch.softmax(logits, -1, dtype=torch.float32)
    log_z = top.float() - probs.gather(1, predicted[:, None])[:, 0].log()
    return DraftChunk(logits, probs, log_z), predicted


@torch.no_grad()
def _target_chunk(hidden: Tensor, head: Head, target_head: Head) -> TargetChunk:
    """Target's logits of the draft vocabulary and its normaliser over the whole one."""
    logits = target_head(hidden).float()
    log_z = logits.logsumexp(-1)
    return TargetChunk(logits if head.token_ids is None else logits[:, head.token_ids], log_z)
