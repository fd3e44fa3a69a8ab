"""Short convolutions over the slots of a block (DFlash 2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BlockConvolution(nn.Module):
    """Two convolutions around a sublayer, one before it and one behind, over the slots of one block.

    ``y_t = sum_i (b_i + d_{t, i}) * x_{t - i}``, where x is zero before the block. ``b`` is learned per channel, and
    ``d``, shared by ``group`` channels, is projected from the sublayer's input for both sides. As published for DFlash
    2: b starts at one on the slot itself and at zero on the earlier ones, d at zero, so that nothing changes at first.

    Args:
        size: Channels H.
        taps: Kernel size, the slot itself included.
        group: Channels that share a dynamic kernel.

    Raises:
        ValueError: If the groups do not divide the channels.
    """

    def __init__(self, size: int, taps: int, group: int) -> None:
        super().__init__()
        if group < 1 or size % group:
            raise ValueError(f"conv_group_size {group} does not divide the width {size}")
        self.taps, self.group = taps, group
        self.base_kernel = nn.Parameter(torch.empty(2, taps, size))
        self.kernel_projection = nn.Linear(size, 2 * taps * (size // group), bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make it the identity."""
        nn.init.zeros_(self.kernel_projection.weight)
        nn.init.zeros_(self.base_kernel)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1

    def kernels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Dynamic kernels ``[N, n, taps, H / group]`` before and behind the sublayer with input ``[N, n, H]``."""
        before, behind = self.kernel_projection(x).unflatten(-1, (2, self.taps, -1)).unbind(-3)
        return before, behind

    def convolved(self, x: Tensor, side: int, dynamic: Tensor, width: int) -> Tensor:
        """``[N, n, H]`` convolved within blocks of ``width`` slots that lie behind each other in n.

        Args:
            x: What to convolve.
            side: 0 before the sublayer, 1 behind.
            dynamic: That side's dynamic kernels.
            width: Slots of a block.
        """
        blocks = x.unflatten(1, (-1, width))
        out = torch.zeros((), dtype=x.dtype, device=x.device)
        for i in range(self.taps):
            earlier = F.pad(blocks, (0, 0, i, 0))[:, :, :width].flatten(1, 2) if i else x
            grouped = earlier.unflatten(-1, (-1, self.group)) * dynamic[:, :, i, :, None]
            out = out + earlier * self.base_kernel[side, i] + grouped.flatten(-2)
        return out.to(x.dtype)
