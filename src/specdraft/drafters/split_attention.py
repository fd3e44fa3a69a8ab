"""Block attention that never forms scores between different blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.drafters.block_attention import BlockAttention
from specdraft.drafters.block_layout import BlockLayout


@dataclass(frozen=True)
class SplitPlan:
    """Additive masks (0 or -inf, float32) and the span of context that each anchor can reach in any row.

    Attributes:
        context: ``[N, 1, A, 1, 1, L]``, or ``[N, 1, A, 1, B, L]`` with a window.
        block: ``[N, 1, A, 1, B, B]``.
        first: Per anchor, the first index that any row sees, on the host.
        stop: Per anchor, one past the last such index; 0 where there is none.
    """

    context: Tensor
    block: Tensor
    first: list[int]
    stop: list[int]


class SplitAttention(BlockAttention):
    """Context scores ``[A * B, L]`` and block scores ``[A, B, B]``, computed apart and normalised in one softmax.

    Heads that share a key are folded into the query rows. Anchors are taken in chunks: a chunk multiplies only the
    span of context that its anchors can reach (half of it on average, with sorted anchors) and its scores are
    computed again in the backward pass, so that nothing larger than one chunk of scores is ever held.

    Args:
        chunk: Scores per chunk, over all rows and heads; a chunk holds at least one anchor.
    """

    def __init__(self, chunk: int = 1 << 20) -> None:
        super().__init__()
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self.chunk = chunk

    @override
    def prepare(self, layout: BlockLayout) -> SplitPlan:
        context, block = layout.context_mask(), layout.block_mask()
        reach = context.any(2).any(0)  # [A, L]
        length = reach.shape[1]
        index = torch.arange(length, device=reach.device)
        first = torch.where(reach, index, length).amin(1)
        stop = torch.where(reach, index + 1, 0).amax(1)
        spans = torch.stack([first, stop]).tolist()  # the only question to the device, once per forward
        return SplitPlan(_additive(context)[:, None, :, None], _additive(block)[:, None, :, None], *spans)

    @override
    def forward(
        self, queries: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], plan: Any
    ) -> Tensor:
        rows, count, heads, width = queries.shape
        anchors, size = plan.block.shape[2], plan.block.shape[-1]
        kv_heads = block[0].shape[2]
        groups = heads // kv_heads
        folded = queries.view(rows, anchors, size, kv_heads, groups, width).permute(0, 3, 1, 4, 2, 5)
        folded = folded.reshape(rows * kv_heads, anchors, groups * size, width)
        keys, values = (x.transpose(1, 2).reshape(rows * kv_heads, -1, width) for x in context)
        block_keys, block_values = (
            x.view(rows, anchors, size, kv_heads, width)
            .permute(0, 3, 1, 2, 4)
            .reshape(rows * kv_heads, anchors, size, width)
            for x in block
        )
        with torch.autocast(queries.device.type, enabled=False):
            out = _Split.apply(folded, keys, values, block_keys, block_values, plan, self.chunk)
        out = out.view(rows, kv_heads, anchors, groups, size, width).permute(0, 2, 4, 1, 3, 5)
        return out.reshape(rows, count, heads, width)


def _additive(visible: Tensor) -> Tensor:
    return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, float("-inf"))


def _chunks(plan: SplitPlan, per_anchor: int, limit: int) -> list[tuple[slice, slice]]:
    """Cut the anchors into runs of at most ``limit`` scores; yields the anchors and their span of context."""
    out, start, anchors = [], 0, len(plan.first)
    while start < anchors:
        stop, first, last = start, plan.first[start], plan.stop[start]
        while stop < anchors:
            low, high = min(first, plan.first[stop]), max(last, plan.stop[stop])
            if stop > start and (stop + 1 - start) * per_anchor * (max(high - low, 0) + plan.block.shape[-1]) > limit:
                break
            first, last, stop = low, high, stop + 1
        out.append((slice(start, stop), slice(min(first, last), last)))
        start = stop
    return out


def _probabilities(q: Tensor, keys: Tensor, block_keys: Tensor, plan: SplitPlan, run: slice, span: slice) -> Tensor:
    """Softmax over the span of context and the own block: ``[R, a * m, span + B]`` for ``[R, a, m, d]`` queries."""
    heads, count, folded, width = q.shape
    size, reach = block_keys.shape[2], span.stop - span.start
    scale = width**-0.5
    wide = q.dtype if q.dtype == torch.float64 else torch.float32
    scores = q.new_empty(heads, count * folded, reach + size, dtype=wide)
    flat = q.reshape(heads, count * folded, width)
    part = scores[..., :reach]
    if wide == q.dtype:
        torch.bmm(flat, keys[:, span].transpose(1, 2), out=part)
    else:
        part.copy_(flat @ keys[:, span].transpose(1, 2))
    own = scores.view(heads, count, folded, reach + size)[..., reach:]
    own.copy_(q @ block_keys[:, run].transpose(-1, -2))
    rows = plan.block.shape[0]
    view = scores.mul_(scale).view(rows, heads // rows, count, folded // size, size, reach + size)
    view[..., :reach] += plan.context[:, :, run, ..., span]
    view[..., reach:] += plan.block[:, :, run]
    return torch.softmax(scores, -1)


class _Split(torch.autograd.Function):
    """Attention of ``[R, A, m, d]`` queries (R = rows x key heads, m = heads per key x B), chunk by chunk."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        block_keys: Tensor,
        block_values: Tensor,
        plan: SplitPlan,
        limit: int,
    ) -> Tensor:
        runs = _chunks(plan, q.shape[0] * q.shape[2], limit)
        out = torch.empty_like(q)
        for run, span in runs:
            probs = _probabilities(q[:, run], keys, block_keys, plan, run, span).to(q.dtype)
            reach = span.stop - span.start
            part = out[:, run]
            part.copy_((probs[..., :reach] @ values[:, span]).view(part.shape))
            part += probs.view(*part.shape[:3], -1)[..., reach:] @ block_values[:, run]
        ctx.save_for_backward(q, keys, values, block_keys, block_values, out)
        ctx.plan, ctx.runs = plan, runs
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, keys, values, block_keys, block_values, out = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        wide = q.dtype if q.dtype == torch.float64 else torch.float32
        grad_q = torch.empty_like(q)
        grad_keys, grad_values = torch.zeros_like(keys, dtype=wide), torch.zeros_like(values, dtype=wide)
        grad_block_keys, grad_block_values = torch.empty_like(block_keys), torch.empty_like(block_values)
        mean = (grad.to(wide) * out).sum(-1).flatten(1)[..., None]  # [R, A * m, 1]
        mean = mean.view(*q.shape[:3], 1)
        for run, span in ctx.runs:
            reach = span.stop - span.start
            queries, upstream = q[:, run], grad[:, run]
            heads, count, folded, width = queries.shape
            probs = _probabilities(queries, keys, block_keys, ctx.plan, run, span)
            flat_up = upstream.reshape(heads, count * folded, width)
            flat_q = queries.reshape(heads, count * folded, width)
            slopes = torch.empty_like(probs)
            slopes[..., :reach] = flat_up @ values[:, span].transpose(1, 2)
            slopes.view(heads, count, folded, -1)[..., reach:] = upstream @ block_values[:, run].transpose(-1, -2)
            slopes -= mean[:, run].reshape(heads, count * folded, 1)
            slopes *= probs
            slopes *= scale
            probs, slopes = probs.to(q.dtype), slopes.to(q.dtype)
            own, own_probs = (x.view(heads, count, folded, -1)[..., reach:] for x in (slopes, probs))
            grad_q[:, run] = (slopes[..., :reach] @ keys[:, span]).view(queries.shape) + own @ block_keys[:, run]
            grad_keys[:, span] += slopes[..., :reach].transpose(1, 2) @ flat_q
            grad_values[:, span] += probs[..., :reach].transpose(1, 2) @ flat_up
            grad_block_keys[:, run] = own.transpose(-1, -2) @ queries
            grad_block_values[:, run] = own_probs.transpose(-1, -2) @ upstream
        return grad_q, grad_keys.to(q.dtype), grad_values.to(q.dtype), grad_block_keys, grad_block_values, None, None
