"""The implementation of block attention that suits the device."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._triton import has_triton
from typing_extensions import override

from specdraft.drafters.block_attention import BlockAttention
from specdraft.drafters.block_layout import BlockLayout
from specdraft.drafters.flex_attention import FlexAttention
from specdraft.drafters.split_attention import SplitAttention

SMALLEST_FLEX_HEAD = 16  # the kernels of flex_attention multiply tiles of at least 16


class AutomaticAttention(BlockAttention):
    """:class:`FlexAttention` on CUDA where Triton is installed, :class:`SplitAttention` elsewhere.

    Args:
        head_dim: Width of a head; narrower ones than flex_attention compiles go to :class:`SplitAttention`.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.flex = FlexAttention()
        self.split = SplitAttention()
        self.head_dim = head_dim

    def choose(self, device_type: str) -> BlockAttention:
        """The implementation for tensors of a device type."""
        fits = self.head_dim >= SMALLEST_FLEX_HEAD
        return self.flex if device_type == "cuda" and fits and has_triton() else self.split

    @override
    def prepare(self, layout: BlockLayout) -> Any:
        return self.choose(layout.anchors.device.type).prepare(layout)

    @override
    def forward(
        self, queries: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], plan: Any
    ) -> Tensor:
        return self.choose(queries.device.type)(queries, context, block, plan)
