"""Frozen linear layers in oneDNN's blocked layout, which is faster for the few rows of a verification round.

In fp32 on the CPU the layout pays from a single row on (an autoregressive step) on some machines, from four on others:
:func:`fewest_packed_rows` measures it, so that neither the baseline nor the verification runs the slower of the two
products. Their results agree within fp32 rounding. The layout costs a copy of the weights, which is made by the first
decoding loop: outside of inference mode (training, loading) the product is the plain one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

# rows that oneDNN chooses the blocking for; 64 served 1 to 256 rows best
BATCH_HINT = 64


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can take ``weight``: fp32 on the CPU, and the operators exist in this build of torch."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _reordered(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, BATCH_HINT)


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@cache
def fewest_packed_rows() -> int:
    """Rows from which the blocked layout is at least as fast as the plain product here: 1, 2, 4 or, untried, 8.

    Measured once per process, in some hundredths of a second: over a single row the plain product took 0.75 times as
    long on an Intel Xeon and 1.2 times as long on another machine. A slow baseline would flatter speed-ups.
    """
    weights = [torch.full((2048, 1024), 0.5) for _ in range(2)]  # together more than the caches of a core
    with torch.inference_mode():
        packed = [_reordered(weight) for weight in weights]
        for rows in (1, 2, 4):
            x = torch.ones(rows, 1024)
            plain_seconds, packed_seconds = [], []
            for _ in range(5):
                began = perf_counter()
                for weight in weights:
                    F.linear(x, weight)
                between = perf_counter()
                for copy in packed:
                    _packed_product(x, copy)
                plain_seconds.append(between - began)
                packed_seconds.append(perf_counter() - between)
            if min(packed_seconds) <= 1.05 * min(plain_seconds):  # one product for all rows where it costs nothing
                return rows
    return 8


def packed_from_rows() -> int | None:
    """What :func:`fewest_packed_rows` is here, to be kept beside measurements; None where a GPU is what decodes."""
    return fewest_packed_rows() if not torch.cuda.is_available() and can_pack(torch.empty(1, 1)) else None


class PackedWeight:
    """A frozen weight with its blocked copy, made by the first decoding loop; plain elsewhere.

    The copy is not refreshed: ``weight`` must never change afterwards.

    Args:
        weight: ``[out, in]`` frozen weight.
        bias: ``[out]`` or None.
        pack: Whether a copy may be made at all.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        self.weight = weight
        self.bias = bias
        self._packed: Tensor | None = None
        self._packable = pack and can_pack(weight)
        self._fewest = fewest_packed_rows() if self._packable else 0  # here, so that no decoding loop pays for it

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``; differentiable in ``x`` outside of inference mode."""
        packs = self._packable and torch.is_inference_mode_enabled() and x.dtype == torch.float32
        if not packs or x.shape[:-1].numel() < self._fewest:
            return F.linear(x, self.weight, self.bias)
        if self._packed is None:
            self._packed = _reordered(self.weight.detach().contiguous())
        return _packed_product(x, self._packed, self.bias)


class PackedLinear(nn.Module):
    """Drop-in for a frozen :class:`torch.nn.Linear`, whose parameters it shares.

    Args:
        linear: The layer to stand in for.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._product = PackedWeight(linear.weight, linear.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        if self.weight is not self._product.weight or self.weight.device.type != "cpu":
            return F.linear(x, self.weight, self.bias)
        return self._product(x)


class JoinedLinears:
    """Plain bias-free linear layers of one input as one packed product.

    Args:
        linears: The layers, which keep their parameters; the product works on a copy of them.
    """

    def __init__(self, *linears: nn.Linear | PackedLinear) -> None:
        self._linears = linears
        self._product = PackedWeight(torch.cat([layer.weight.detach() for layer in linears]))

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in]`` to the outputs of all layers behind each other."""
        first = self._linears[0].weight
        if not can_pack(first):  # the module has left the CPU or changed its dtype
            return torch.cat([layer(x) for layer in self._linears], -1)
        return self._product(x)


def joined(*linears: nn.Module) -> JoinedLinears | None:
    """One product for several layers; None where one of them is not plain, has a bias or cannot be packed."""
    plain = [layer for layer in linears if isinstance(layer, (nn.Linear, PackedLinear))]
    fit = [type(x) in (nn.Linear, PackedLinear) and x.bias is None and can_pack(x.weight) for x in plain]
    return JoinedLinears(*plain) if len(plain) == len(linears) and all(fit) else None


def _joint_products(module: nn.Module) -> list[tuple[nn.Module, str, list[nn.Module]]]:
    """What modules declare as ``joint_products``: attributes, and the layers of one input that each may join."""
    return [
        (each, name, [getattr(each, layer) for layer in layers])
        for each in module.modules()
        for name, layers in getattr(each, "joint_products", {}).items()
    ]


def pack_linears(module: nn.Module) -> int:
    """Replace every plain fp32 CPU ``nn.Linear`` below ``module`` and return how many there were.

    Subclasses (quantised or adapted layers) stay as they are. A module whose class attribute ``joint_products`` maps
    the name of an attribute to those of its layers finds their :class:`JoinedLinears` there until it is unpacked, or
    None where they cannot be joined.
    """
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and can_pack(child.weight):
                setattr(parent, name, PackedLinear(child))
                replaced += 1
    for each, name, layers in _joint_products(module):
        setattr(each, name, joined(*layers))
    return replaced


@contextmanager
def packed_linears(module: nn.Module) -> Iterator[None]:
    """Decode with packed copies of the weights of a module that is trained elsewhere; does nothing off the CPU.

    Args:
        module: Drafter or corrector, whose weights must not change within the block.
    """
    try:
        pack_linears(module)
        yield
    finally:
        unpack_linears(module)


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
    for each, name, _ in _joint_products(module):
        setattr(each, name, None)
    return replaced
