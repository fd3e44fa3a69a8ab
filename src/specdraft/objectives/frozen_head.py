"""Loss through the frozen vocabulary projection without ever holding all logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        further: Losses ``[n]`` of the further predictions, differentiable as well.
    """

    loss: Tensor
    label_prob: Tensor
    predicted: Tensor
    overlap: Tensor | None
    further: tuple[Tensor, ...] = ()


def frozen_head_loss(
    hidden: Tensor,
    head: Head,
    rows: Tensor,
    prediction: Prediction,
    target_hidden: Tensor | None,
    target_head: Head | None,
    chunk_size: int | None = None,
    further: Sequence[Prediction] = (),
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
        further: Losses to compute from the same logits; each keeps a gradient ``[n, H]`` of its own.

    Raises:
        ValueError: If ``chunk_size`` is below 1, or the target's distribution is needed and cannot be computed.
    """
    if chunk_size is None:
        chunk_size = default_chunk_size(head.weight.shape[0], hidden.device)
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    predictions = (prediction, *further)
    lacking = next((x for x in predictions if x.needs_target and target_hidden is None), None)
    if lacking is not None:
        raise ValueError(f"{type(lacking).__name__} needs the target's last hidden states; extract them as well")
    if target_hidden is not None and target_head is None and head.token_ids is not None:
        raise ValueError("the head is reduced to the draft vocabulary; pass the target's whole head as target_head")
    want = torch.is_grad_enabled() and hidden.requires_grad
    count = hidden.shape[0]
    label_prob, overlap = torch.empty(2, count, dtype=torch.float32, device=hidden.device)
    losses = torch.empty(len(predictions), count, dtype=torch.float32, device=hidden.device)
    predicted = torch.empty(count, dtype=torch.int64, device=hidden.device)
    grads = [torch.empty_like(hidden, requires_grad=False) for _ in predictions] if want else []
    for start in range(0, count, chunk_size):
        part = slice(start, start + chunk_size)
        # all logits are local to the call, so that those of one chunk are gone before the next begins
        target = None if target_hidden is None else _target_chunk(target_hidden[part], head, target_head or head)
        chunk, slopes = _chunk_loss(hidden[part].detach(), head, rows[part], predictions, target, want)
        label_prob[part], predicted[part] = chunk.label_prob, chunk.predicted
        for index, value in enumerate((chunk.loss, *chunk.further)):
            losses[index, part] = value
        if chunk.overlap is not None:
            overlap[part] = chunk.overlap
        for grad, slope in zip(grads, slopes, strict=True):
            grad[part] = slope
        del target
    if want:
        known = [_KnownGradient.apply(hidden, loss, grad) for loss, grad in zip(losses, grads, strict=True)]
    else:
        known = list(losses)
    return HeadLoss(known[0], label_prob, predicted, None if target_hidden is None else overlap, tuple(known[1:]))


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
    hidden: Tensor,
    head: Head,
    rows: Tensor,
    predictions: Sequence[Prediction],
    target: TargetChunk | None,
    want: bool,
) -> tuple[HeadLoss, list[Tensor]]:
    """Losses of one chunk and, if wanted, their gradients ``[c, H]``; all detached."""
    hidden.requires_grad_(want)
    with torch.set_grad_enabled(want):
        logits = head(hidden)
    losses, grads = [], []
    with torch.no_grad():
        draft, predicted = _draft_chunk(logits.detach())
        label_prob = torch.exp(draft.logits.gather(1, rows[:, None])[:, 0].float() - draft.log_z)
        overlap = None if target is None else torch.minimum(target.probs, draft.probs).sum(-1)
        for index, prediction in enumerate(predictions):
            last = index == len(predictions) - 1  # only the last may overwrite the probabilities
            own = draft if last or not want else replace(draft, probs=draft.probs.clone())
            loss, slope = prediction.fused(own, rows, target, want)
            losses.append(loss)
            if slope is not None:
                grads.append(torch.autograd.grad(logits, hidden, slope.to(logits.dtype), retain_graph=not last)[0])
            del slope
    return HeadLoss(losses[0], label_prob, predicted, overlap, tuple(losses[1:])), grads


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
