"""Block attention that allocates and counts what the real one does, without computing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from specdraft.drafters.block_attention import BlockAttention
from specdraft.drafters.block_layout import BlockLayout
from specdraft.estimate.live_memory import LiveMemory


class AttentionShapes(BlockAttention):
    """Memory of :class:`FlexAttention` (``fused``) or :class:`SplitAttention`, whichever the device gets.

    Both hold queries, keys, values and the output of every layer; the fused kernel holds a log-normaliser per query in
    addition, the split one a chunk of scores at a time and an additive mask over the context. Anchors are taken to be
    spread evenly, so that a slot sees half of its row.

    Args:
        live: Books the memory.
        fused: Whether the device has the fused kernel.
        chunk: Scores per chunk of the split one.
    """

    def __init__(self, live: LiveMemory, fused: bool, chunk: int = 1 << 18) -> None:
        super().__init__()
        self.live = live
        self.fused = fused
        self.chunk = chunk

    @override
    def prepare(self, layout: BlockLayout) -> Tensor | None:
        with self.live.booked("attention"):
            rows, anchors = layout.anchors.shape
            length = layout.document_ids.shape[1]
            return None if self.fused else torch.empty(rows, 1, anchors, 1, 1, length)

    @override
    def forward(
        self, queries: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], plan: Any
    ) -> Tensor:
        with self.live.booked("attention"):
            if self.fused:
                keys, values = (torch.cat([c, b], 1) for c, b in zip(context, block, strict=True))
                return _Shapes.apply(queries, keys, values, None, None, self)
            folded = queries * 1.0  # scaled and folded: two copies, of which one stays
            parts = [x.transpose(1, 2).contiguous() for x in (*context, *block)]
            out = _Shapes.apply(folded.clone(), *parts, self)
            return out.clone()

    def scores(self, queries: Tensor, context: int) -> int:
        """Scores that the split implementation holds at a time."""
        return min(self.chunk, queries.shape[:3].numel() * context // 2)

    def count(self, queries: Tensor, context: int, products: int) -> None:
        """Count so many products of the scores' shape."""
        rows, slots, heads, width = queries.shape
        self.live.flops += products * 2 * rows * slots * heads * width * (context / 2)


class _Shapes(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, keys: Tensor, values: Tensor, own_keys: Any, own_values: Any, owner: AttentionShapes
    ) -> Tensor:
        out = torch.empty_like(q)
        context = keys.shape[1] - q.shape[1] if owner.fused else keys.shape[2]
        owner.count(q, context, 2)
        if owner.fused:
            extra = [out, q.new_empty(q.shape[:3], dtype=torch.float32)]
        else:
            extra = [own_keys, own_values]
            q.new_empty(2 * owner.scores(q, context), dtype=torch.float32)
        ctx.save_for_backward(q, keys, values, *extra)
        ctx.owner, ctx.context = owner, context
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, keys, values, *extra = ctx.saved_tensors
        owner: AttentionShapes = ctx.owner
        with owner.live.booked("attention"):
            owner.count(q, ctx.context, 5)
            if owner.fused:
                return torch.empty_like(q), torch.empty_like(keys), torch.empty_like(values), None, None, None
            q.new_empty(4 * owner.scores(q, ctx.context), dtype=torch.float32)
            return (*(torch.empty_like(x) for x in (q, keys, values, *extra)), None)
