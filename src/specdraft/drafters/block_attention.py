"""Attention of many blocks over one context: the contract and its slow reference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from specdraft.drafters.block_layout import BlockLayout


class BlockAttention(nn.Module, ABC):
    """Attention of all slots of all blocks, over the context and over their own block.

    Queries come from the blocks only. Implementations differ in speed and memory, not in the result. They hold no
    parameters and no state, so that one instance serves every layer.
    """

    @abstractmethod
    def prepare(self, layout: BlockLayout) -> Any:
        """Build what all layers of one forward share, from the layout of the blocks."""

    @abstractmethod
    def forward(
        self, queries: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], plan: Any
    ) -> Tensor:
        """Attend.

        Args:
            queries: ``[N, A * B, Hq, d]``, rotated.
            context: Keys and values ``[N, L, Hkv, d]`` of the context; ``Hkv`` divides ``Hq``.
            block: Keys and values ``[N, A * B, Hkv, d]`` of the slots.
            plan: Result of :meth:`prepare`.

        Returns:
            ``[N, A * B, Hq, d]``, finite for every slot.
        """


class DenseAttention(BlockAttention):
    """Reference: one mask over the context and every block, ``[N, A * B, L + A * B]``.

    It spends most of its time on pairs of blocks that never see each other, and is kept to test the others against.
    """

    @override
    def prepare(self, layout: BlockLayout) -> Tensor:
        context, block = layout.context_mask(), layout.block_mask()
        rows, anchors, size, _ = block.shape
        context = context.expand(-1, -1, size, -1)
        blocks = block.new_zeros(rows, anchors, size, anchors, size)
        same = torch.arange(anchors, device=block.device)
        blocks[:, same, :, same] = block.transpose(0, 1)  # indexing by two tensors puts the anchors first
        mask = torch.cat([context.flatten(1, 2), blocks.view(rows, anchors * size, anchors * size)], -1)
        return mask[:, None]

    @override
    def forward(
        self, queries: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], plan: Any
    ) -> Tensor:
        groups = queries.shape[2] // block[0].shape[2]
        keys, values = (
            torch.cat([c, b], 1).transpose(1, 2).repeat_interleave(groups, 1)
            for c, b in zip(context, block, strict=True)
        )
        out = F.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, attn_mask=plan)
        return out.transpose(1, 2)
