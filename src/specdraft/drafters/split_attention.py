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
    """Additive masks (0 or -inf, float32) and, on the host, the interval of context that each anchor sees.

    Attributes:
        context: ``[N, 1, A, 1, 1, L]``, or ``[N, 1, A, 1, B, L]`` with a window.
        block: ``[N, 1, A, 1, B, B]``, or None where every slot sees its whole block.
        starts: Per anchor, the first index that any row sees, and the first that all rows see.
        stops: Per anchor, one past the last index that all rows see, and one past the last that any row sees.
    """

    context: Tensor
    block: Tensor | None
    starts: list[tuple[int, int]]
    stops: list[tuple[int, int]]


@dataclass(frozen=True)
class Run:
    """Anchors that are computed together, the context they can reach, and the part of it that needs no mask."""

    anchors: slice
    reach: slice
    masked: tuple[slice, slice]

    @property
    def width(self) -> int:
        """Number of context tokens in reach."""
        return self.reach.stop - self.reach.start


class SplitAttention(BlockAttention):
    """Context scores ``[A * B, L]`` and block scores ``[A, B, B]``, computed apart and normalised in one softmax.

    Heads that share a key are folded into the query rows. Anchors are taken in chunks: a chunk multiplies only the
    span of context that its anchors can reach (half of it on average, with sorted anchors) and its scores are
    computed again in the backward pass, so that nothing larger than one chunk of scores is ever held.

    Args:
        chunk: Scores per chunk, over all rows and heads; a chunk holds at least one anchor.
    """

    def __init__(self, chunk: int = 1 << 18) -> None:
        super().__init__()
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self.chunk = chunk

    @override
    def prepare(self, layout: BlockLayout) -> SplitPlan:
        context, block = layout.context_mask(), layout.block_mask()
        length = context.shape[-1]
        index = torch.arange(length, device=context.device)
        # what a slot sees is an interval: a document, or the end of one, up to the anchor
        start = torch.where(context, index, length).amin(-1).transpose(0, 1).flatten(1)  # [A, N * slots]
        stop = torch.where(context, index + 1, 0).amax(-1).transpose(0, 1).flatten(1)
        bounds = torch.stack(
            [start.amin(1), start.amax(1), stop.amin(1), stop.amax(1), block.all().expand(len(start))], 1
        )
        host = bounds.tolist()  # the only question to the device, once per forward
        return SplitPlan(
            _additive(context)[:, None, :, None],
            None if all(row[4] for row in host) else _additive(block)[:, None, :, None],
            [(row[0], row[1]) for row in host],
            [(row[2], row[3]) for row in host],
        )

    @override
    def forward(
        self, queries: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], plan: Any
    ) -> Tensor:
        rows, count, heads, width = queries.shape
        anchors = plan.context.shape[2]
        size = count // anchors
        kv_heads = block[0].shape[2]
        groups = heads // kv_heads
        folded = (queries * width**-0.5).view(rows, anchors, size, kv_heads, groups, width).permute(0, 3, 1, 4, 2, 5)
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


def _runs(plan: SplitPlan, per_anchor: int, size: int, limit: int) -> list[Run]:
    """Cut the anchors into runs of at most ``limit`` scores, at least one anchor each."""
    out: list[Run] = []
    begin, total = 0, len(plan.starts)
    while begin < total:
        end, low, high = begin, plan.starts[begin][0], plan.stops[begin][1]
        while end < total:
            wider = min(low, plan.starts[end][0]), max(high, plan.stops[end][1])
            if end > begin and (end + 1 - begin) * per_anchor * (max(0, wider[1] - wider[0]) + size) > limit:
                break
            (low, high), end = wider, end + 1
        low = min(low, high)
        # all of the run sees [inner, outer): masks are added in front of it and behind it only
        inner = min(max(start for _, start in plan.starts[begin:end]), high)
        outer = max(min(stop for stop, _ in plan.stops[begin:end]), inner)
        out.append(Run(slice(begin, end), slice(low, high), (slice(low, inner), slice(outer, high))))
        begin = end
    return out


def _fill(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Batched product of 3-d tensors into a slice, which may be wider than the factors."""
    if out.dtype == a.dtype:
        torch.bmm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _scores(q: Tensor, keys: Tensor, block_keys: Tensor, run: Run) -> Tensor:
    """Products ``[R, a * m, reach + B]`` of ``[R, a, m, d]`` vectors with the context in reach and the own block.

    At least float32, whatever the dtype of the factors.
    """
    heads, count, folded, width = q.shape
    wide = q.dtype if q.dtype == torch.float64 else torch.float32
    out = q.new_empty(heads, count * folded, run.width + block_keys.shape[2], dtype=wide)
    _fill(out[..., : run.width], q.reshape(heads, -1, width), keys[:, run.reach].transpose(1, 2))
    own = out.view(heads, count, folded, -1)[..., run.width :]
    own.copy_(q @ block_keys[:, run.anchors].transpose(-1, -2))
    return out


def _probabilities(q: Tensor, keys: Tensor, block_keys: Tensor, plan: SplitPlan, run: Run) -> Tensor:
    """Softmax over the context in reach and the own block, ``[R, a * m, reach + B]``."""
    scores = _scores(q, keys, block_keys, run)
    rows, size = plan.context.shape[0], block_keys.shape[2]
    view = scores.view(rows, q.shape[0] // rows, q.shape[1], -1, size, scores.shape[-1])
    for part in run.masked:
        if part.start < part.stop:
            view[..., part.start - run.reach.start : part.stop - run.reach.start] += plan.context[
                :, :, run.anchors, ..., part
            ]
    if plan.block is not None:
        view[..., run.width :] += plan.block[:, :, run.anchors]
    return torch.softmax(scores, -1)


class _Split(torch.autograd.Function):
    """Attention of scaled ``[R, A, m, d]`` queries; R = rows x key heads, m = heads per key x B."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, keys: Tensor, values: Tensor, block_keys: Tensor, block_values: Tensor, plan: SplitPlan,
        limit: int,
    ) -> Tensor:  # fmt: skip
        runs = _runs(plan, q.shape[0] * q.shape[2], block_keys.shape[2], limit)
        out = torch.empty_like(q)
        for run in runs:
            probs = _probabilities(q[:, run.anchors], keys, block_keys, plan, run).to(q.dtype)
            part = out[:, run.anchors]
            torch.matmul(probs.view(*part.shape[:3], -1)[..., run.width :], block_values[:, run.anchors], out=part)
            part += (probs[..., : run.width] @ values[:, run.reach]).view(part.shape)
        ctx.save_for_backward(q, keys, values, block_keys, block_values)
        ctx.plan, ctx.runs = plan, runs
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, keys, values, block_keys, block_values = ctx.saved_tensors
        wide = q.dtype if q.dtype == torch.float64 else torch.float32
        grad_q, grad_block_keys, grad_block_values = (torch.empty_like(x) for x in (q, block_keys, block_values))
        grad_keys, grad_values = (torch.zeros_like(x, dtype=wide) for x in (keys, values))
        for run in ctx.runs:
            queries, upstream = q[:, run.anchors], grad[:, run.anchors]
            probs = _probabilities(queries, keys, block_keys, ctx.plan, run)
            slopes = _scores(upstream, values, block_values, run)
            slopes = torch._softmax_backward_data(slopes, probs, -1, slopes.dtype).to(q.dtype)
            probs = probs.to(q.dtype)
            context_slopes, context_probs = (x[..., : run.width] for x in (slopes, probs))
            own_slopes, own_probs = (x.view(*queries.shape[:3], -1)[..., run.width :] for x in (slopes, probs))
            grad_q[:, run.anchors] = own_slopes @ block_keys[:, run.anchors]
            grad_q[:, run.anchors] += (context_slopes @ keys[:, run.reach]).view(queries.shape)
            grad_keys[:, run.reach] += context_slopes.transpose(1, 2) @ queries.flatten(1, 2)
            grad_values[:, run.reach] += context_probs.transpose(1, 2) @ upstream.flatten(1, 2)
            grad_block_keys[:, run.anchors] = own_slopes.transpose(-1, -2) @ queries
            grad_block_values[:, run.anchors] = own_probs.transpose(-1, -2) @ upstream
        return grad_q, grad_keys.to(q.dtype), grad_values.to(q.dtype), grad_block_keys, grad_block_values, None, None
