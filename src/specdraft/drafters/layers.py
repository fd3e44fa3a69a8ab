"""Building blocks of the DFlash backbone; module names are those of the published checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdraft.drafters.convolution import BlockConvolution
from specdraft.drafters.rope import rotate
from specdraft.packing import JoinedLinears

Rope = tuple[Tensor, Tensor]
KeysValues = tuple[Tensor, Tensor]
Attend = Callable[[Tensor, KeysValues, "KeysValues | None"], Tensor]


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 whatever the input and the autocast state.

    Args:
        size: Width of the last dimension.
        eps: Added to the mean square.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of any shape; the dtype stays."""
        wide = x if x.dtype == torch.float64 else x.float()
        return F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps).to(x.dtype)

    def scale(self, x: Tensor) -> Tensor:
        """Normalise as :meth:`forward` does, without the weight."""
        wide = x if x.dtype == torch.float64 else x.float()
        return F.rms_norm(wide, self.weight.shape, None, self.eps).to(x.dtype)


class MLP(nn.Module):
    """SwiGLU without biases.

    Args:
        hidden_size: Width H.
        intermediate_size: Width of the gate.
    """

    joint_products: ClassVar = {"_gate_up": ("gate_proj", "up_proj")}  # in decoding, see pack_linears

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self._gate_up: JoinedLinears | None = None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., H]`` to ``[..., H]``."""
        gate, up = (self.gate_proj(x), self.up_proj(x)) if self._gate_up is None else self._gate_up(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Projections(nn.Module):
    """Projections of an attention layer; the attention itself is chosen by the caller.

    Context and block go through the same key and value projections (KV injection, arXiv 2602.06036).

    Args:
        hidden_size: Width H.
        heads: Query heads Hq.
        kv_heads: Key/value heads Hkv.
        head_dim: Width d of a head.
        eps: Epsilon of the per-head norms.
    """

    # a block's in decoding, and the context's
    joint_products: ClassVar = {"_qkv": ("q_proj", "k_proj", "v_proj"), "_kv": ("k_proj", "v_proj")}

    def __init__(self, hidden_size: int, heads: int, kv_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.q_proj = nn.Linear(hidden_size, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden_size, bias=False)
        self.q_norm = RMSNorm(head_dim, eps)
        self.k_norm = RMSNorm(head_dim, eps)
        self.head_dim = head_dim
        self._heads = (heads, kv_heads)
        self._qkv: JoinedLinears | None = None
        self._kv: JoinedLinears | None = None

    def of_block(self, x: Tensor, rope: Rope) -> tuple[Tensor, KeysValues]:
        """:meth:`queries` and :meth:`keys_values` of one input."""
        if self._qkv is None:
            return self.queries(x, rope), self.keys_values(x, rope)
        heads, kv_heads = self._heads
        mixed = self._qkv(x).unflatten(-1, (-1, self.head_dim))
        queries, keys, values = mixed.split((heads, kv_heads, kv_heads), -2)
        turned = rotate(torch.cat([self.q_norm(queries), self.k_norm(keys)], -2), rope)
        return turned[..., :heads, :], (turned[..., heads:, :], values)

    def queries(self, x: Tensor, rope: Rope) -> Tensor:
        """``[N, n, H]`` to rotated queries ``[N, n, Hq, d]``."""
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), rope)

    def keys_values(self, x: Tensor, rope: Rope) -> KeysValues:
        """``[N, n, H]`` to rotated keys and values, each ``[N, n, Hkv, d]``."""
        keys, values = (self.k_proj(x), self.v_proj(x)) if self._kv is None else self._kv(x).chunk(2, -1)
        keys = rotate(self.k_norm(keys.unflatten(-1, (-1, self.head_dim))), rope)
        return keys, values.unflatten(-1, (-1, self.head_dim))


class Layer(nn.Module):
    """One pre-norm decoder layer; the caller says how to attend, training and decoding differ in nothing else.

    Args:
        attention: The projections of the layer.
        hidden_size: Width H.
        intermediate_size: Width of the MLP.
        eps: Epsilon of the norms.
        dropout: Share of the values dropped, while training, from what attention and MLP add to the stream.
        convolution: Taps and channels per group of the convolutions around attention and MLP; None for none.
    """

    def __init__(
        self,
        attention: Projections,
        hidden_size: int,
        intermediate_size: int,
        eps: float,
        dropout: float = 0.0,
        convolution: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = attention
        self.mlp = MLP(hidden_size, intermediate_size)
        self.input_layernorm = RMSNorm(hidden_size, eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)
        self.dropout = nn.Dropout(dropout)
        self.attention_conv = BlockConvolution(hidden_size, *convolution) if convolution else None
        self.mlp_conv = BlockConvolution(hidden_size, *convolution) if convolution else None

    def forward(
        self,
        hidden: Tensor,
        rope: Rope,
        attend: Attend,
        context: tuple[Tensor, Rope] | None = None,
        width: int | None = None,
    ) -> Tensor:
        """Run the layer over the block tokens.

        Args:
            hidden: ``[N, n, H]`` residual stream.
            rope: Rotation of the block's positions.
            attend: Called with the queries, the block's keys and values, and those of the context or None.
            context: ``[N, L, H]`` fused features and their rotation, or None when their keys and values are cached.
            width: Slots of a block, of which n are several behind each other; None for one.

        Returns:
            ``[N, n, H]`` residual stream.
        """
        past = None if context is None else self.self_attn.keys_values(*context)

        def attention(inner: Tensor) -> Tensor:
            attended = attend(*self.self_attn.of_block(inner, rope), past)
            return self.self_attn.o_proj(attended.flatten(2))

        width = hidden.shape[1] if width is None else width
        hidden = hidden + self.dropout(_around(attention, self.attention_conv, self.input_layernorm(hidden), width))
        inner = self.post_attention_layernorm(hidden)
        return hidden + self.dropout(_around(self.mlp, self.mlp_conv, inner, width))


def _around(
    sublayer: Callable[[Tensor], Tensor], convolution: BlockConvolution | None, inner: Tensor, width: int
) -> Tensor:
    """A sublayer between its convolutions, if it has any."""
    if convolution is None:
        return sublayer(inner)
    before, behind = convolution.kernels(inner)
    return convolution.convolved(sublayer(convolution.convolved(inner, 0, before, width)), 1, behind, width)
