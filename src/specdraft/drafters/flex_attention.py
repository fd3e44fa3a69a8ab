"""Block attention through ``torch.nn.attention.flex_attention``: block-sparse, one fused kernel on CUDA."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from typing_extensions import override

from specdraft.drafters.block_attention import BlockAttention
from specdraft.drafters.block_layout import BlockLayout


@cache
def _compiled(function: Any) -> Any:
    """Compile on first use only: importing this module must not start a compiler."""
    return torch.compile(function)


class FlexAttention(BlockAttention):
    """One flex_attention over the context and all blocks; tiles that nobody sees are skipped.

    The block mask is the same for all heads and layers and is built once per forward.

    Args:
        compiled: Whether to compile; None compiles on CUDA only. Without it the whole score matrix is formed, and on
            the CPU there is no backward pass: for tests.
    """

    def __init__(self, compiled: bool | None = None) -> None:
        super().__init__()
        self.compiled = compiled

    def _wrap(self, function: Any, device: torch.device) -> Any:
        wanted = device.type == "cuda" if self.compiled is None else self.compiled
        return _compiled(function) if wanted else function

    @override
    def prepare(self, layout: BlockLayout) -> Any:
        rows, anchors, size = layout.slots.shape
        length = layout.document_ids.shape[1]
        documents = layout.document_ids.gather(1, layout.anchors)
        slot_positions = layout.slot_positions().flatten(1)
        slots = layout.slots.flatten(1)
        # locals, because the compiler guards on what the closure captures
        anchor_ids, ids, positions = layout.anchors, layout.document_ids, layout.position_ids
        causal, window = layout.causal, layout.window

        def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            block = query // size
            # both branches are evaluated for every key, so that indices are clamped into their own part
            index, other = key.clamp(max=length - 1), (key - length).clamp(min=0)
            document = documents[row, block]
            seen = (key < length) & (index < anchor_ids[row, block])
            seen = seen & (ids[row, index] == document) & (document >= 0)
            own = (key >= length) & (other // size == block) & slots[row, other]
            if causal:
                own = own & (other <= query)
            if window is not None:
                position = slot_positions[row, query]
                seen = seen & (position - positions[row, index] < window)
                own = own & (query - other < window)
            return seen | own | (key - length == query)

        build = self._wrap(create_block_mask, slots.device)
        return build(visible, rows, None, anchors * size, length + anchors * size, device=str(slots.device))

    @override
    def forward(
        self, queries: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], plan: Any
    ) -> Tensor:
        keys, values = (torch.cat([c, b], 1).transpose(1, 2) for c, b in zip(context, block, strict=True))
        attend = self._wrap(flex_attention, queries.device)
        grouped = queries.shape[2] != keys.shape[1]
        return attend(queries.transpose(1, 2), keys, values, block_mask=plan, enable_gqa=grouped).transpose(1, 2)
