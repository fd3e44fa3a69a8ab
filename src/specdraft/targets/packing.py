"""Frozen linear layers in oneDNN's blocked layout, which is faster for the few rows of a verification round.

The layout pays between 3 and 64 rows in fp32 on the CPU. One or two rows (autoregressive steps) are faster as a plain
product, and so they stay plain by default: a baseline must not be slowed down by what speeds up the verification.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

# rows where the packed product wins; outside of it the plain one is as fast or faster
FEWEST_ROWS, MOST_ROWS = 3, 64


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can take ``weight``: fp32 on the CPU, and the operators exist in this build of torch."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class PackedWeight:
    """A frozen weight with its blocked copy, made on first use; plain where the blocked layout does not pay.

    The copy is not refreshed: ``weight`` must never change afterwards.

    Args:
        weight: ``[out, in]`` frozen weight.
        bias: ``[out]`` or None.
        batch_hint: Rows that oneDNN chooses the blocking for.
        fewest_rows: Rows from which on the blocked copy is used; 1 makes results independent of the number of rows.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, batch_hint: int = 64, fewest_rows: int = FEWEST_ROWS
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.batch_hint = batch_hint
        self.fewest_rows = fewest_rows
        self._packed: Tensor | None = None
        self._packable = can_pack(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``; differentiable in ``x`` (the plain product is taken then)."""
        rows = x.numel() // x.shape[-1]
        few = self._packable and self.fewest_rows <= rows <= MOST_ROWS and x.dtype == torch.float32
        if not few or (torch.is_grad_enabled() and x.requires_grad):
            return F.linear(x, self.weight, self.bias)
        if self._packed is None:
            with torch.inference_mode(False):
                plain = self.weight.detach().contiguous()
                self._packed = torch.ops.mkldnn._reorder_linear_weight(plain, self.batch_hint)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")


class PackedLinear(nn.Module):
    """Drop-in for a frozen :class:`torch.nn.Linear`, whose parameters it shares.

    Args:
        linear: The layer to stand in for.
        fewest_rows: See :class:`PackedWeight`.
    """

    def __init__(self, linear: nn.Linear, fewest_rows: int = FEWEST_ROWS) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._product = PackedWeight(linear.weight, linear.bias, fewest_rows=fewest_rows)

    @override
    def forward(self, x: Tensor) -> Tensor:
        if self.weight is not self._product.weight or self.weight.device.type != "cpu":
            return F.linear(x, self.weight, self.bias)
        return self._product(x)


def pack_linears(module: nn.Module, fewest_rows: int = FEWEST_ROWS) -> int:
    """Replace every plain fp32 CPU ``nn.Linear`` below ``module`` and return how many there were.

    Subclasses (quantised or adapted layers) stay as they are.
    """
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and can_pack(child.weight):
                setattr(parent, name, PackedLinear(child, fewest_rows))
                replaced += 1
    return replaced


def unpack_linears(module: nn.Module) -> int:
    """Inverse of :func:`pack_linears`: plain layers again, before the module leaves the CPU or changes its dtype."""
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PackedLinear):
                linear = nn.Linear(child.in_features, child.out_features, bias=child.bias is not None, device="meta")
                linear.weight, linear.bias = child.weight, child.bias
                setattr(parent, name, linear.eval())
                replaced += 1
    return replaced
