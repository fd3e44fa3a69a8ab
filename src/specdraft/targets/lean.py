"""Cached forward of Llama-like decoders: the same weights and values, without the modules of transformers.

A decoding step on a few rows is bound by reading the weights, and by the hundreds of small operations that transformers
spends around each product. Here query, key and value projections are one product, so are gate and up, masks are
built once per forward or not at all, and keys of the group are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdraft.attention import decoding_mask, folded_attention
from specdraft.cache import KeyValueCache
from specdraft.packing import PackedLinear, PackedWeight

# pre-norm decoders of RMSNorm, rotary attention over whole heads and SwiGLU; anything else runs its own modules
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_ROPE = ("default", "linear", "llama3", "yarn")  # frequencies that do not depend on the length


@dataclass
class _Layer:
    """Weights of one decoder layer."""

    input_norm: Tensor
    qkv: PackedWeight
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: PackedWeight
    mlp_norm: Tensor
    gate_up: PackedWeight
    down: PackedWeight
    window: int | None


class LeanDecoder:
    """Runs cached forwards on the weights of a decoder of transformers, which keeps working.

    The weights of query, key and value become views of one tensor, and so do those of gate and up.

    Args:
        decoder: A decoder that :meth:`fits`.
        config: Its text configuration.
        pack: Whether decoding may use packed copies of the weights.
    """

    def __init__(self, decoder: Any, config: Any, pack: bool = True) -> None:
        self._embed, self._rotary = decoder.embed_tokens, decoder.rotary_emb
        self._norm, self._eps = decoder.norm.weight, config.rms_norm_eps
        self._head_dim = decoder.layers[0].self_attn.head_dim
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._layers = [self._taken_over(layer, pack) for layer in decoder.layers]

    @staticmethod
    def fits(decoder: Any, config: Any) -> bool:
        """Whether a decoder is built as this forward expects: known family, plain linear layers, no special options."""
        rope = getattr(config, "rope_parameters", None) or {}
        if (
            config.model_type not in FAMILIES
            or getattr(config, "hidden_act", None) != "silu"
            or any(isinstance(value, dict) for value in rope.values())
            or rope.get("rope_type", "default") not in _ROPE
            or rope.get("partial_rotary_factor", 1.0) != 1.0
        ):
            return False
        names = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
        return all(
            type(getattr(getattr(layer, part), name)) in (nn.Linear, PackedLinear)
            for layer in decoder.layers
            for part in names
            for name in names[part]
        )

    def _taken_over(self, layer: Any, pack: bool) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp

        def product(*linears: Any) -> PackedWeight:
            weight, bias = _fused(linears)
            return PackedWeight(weight, bias, pack=pack)

        def norm(name: str) -> Tensor | None:
            return getattr(getattr(attention, name, None), "weight", None)

        types = getattr(attention.config, "layer_types", None)
        sliding = types is None or types[attention.layer_idx] == "sliding_attention"
        return _Layer(
            layer.input_layernorm.weight,
            product(attention.q_proj, attention.k_proj, attention.v_proj),
            norm("q_norm"),
            norm("k_norm"),
            product(attention.o_proj),
            layer.post_attention_layernorm.weight,
            product(mlp.gate_proj, mlp.up_proj),
            product(mlp.down_proj),
            getattr(attention.config, "sliding_window", None) if sliding else None,
        )

    def __call__(self, ids: Tensor, cache: KeyValueCache, taps: frozenset[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Run ``[N, n]`` tokens behind the cached ones; hidden states after the final norm, and the tapped outputs."""
        where = cache.positions(ids.shape[1])
        hidden = self._embed(ids)
        cos, sin = self._rotary(hidden, where)
        half = self._head_dim // 2
        # rotate_half(x) * sin is roll(x) times a sine whose first half is negated
        rope = (cos[:, :, None], torch.cat([-sin[..., :half], sin[..., half:]], -1)[:, :, None])
        masks: dict[int | None, Tensor | None] = {}
        outputs: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            normed = F.rms_norm(hidden, layer.input_norm.shape, layer.input_norm, self._eps)
            mixed = self._attend(index, layer, normed, rope, cache, where, masks)
            hidden = hidden + layer.output(mixed)
            normed = F.rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, self._eps)
            gate, up = layer.gate_up(normed).chunk(2, -1)
            hidden = hidden + layer.down(F.silu(gate).mul_(up))
            if index in taps:
                outputs[index] = hidden
        return F.rms_norm(hidden, self._norm.shape, self._norm, self._eps), outputs

    def _attend(
        self,
        index: int,
        layer: _Layer,
        normed: Tensor,
        rope: tuple[Tensor, Tensor],
        cache: KeyValueCache,
        where: Tensor,
        masks: dict[int | None, Tensor | None],
    ) -> Tensor:
        """Attention of one layer up to the output projection: ``[N, n, H]`` to ``[N, n, Hq * d]``."""
        rows, fresh, _ = normed.shape
        groups = self._heads // self._kv_heads
        mixed = layer.qkv(normed).view(rows, fresh, self._heads + 2 * self._kv_heads, self._head_dim)
        turned, values = mixed[:, :, : self._heads + self._kv_heads], mixed[:, :, self._heads + self._kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            shape = layer.q_norm.shape
            turned = torch.cat(
                [
                    F.rms_norm(turned[:, :, : self._heads], shape, layer.q_norm, self._eps),
                    F.rms_norm(turned[:, :, self._heads :], shape, layer.k_norm, self._eps),
                ],
                2,
            )
        turned = torch.addcmul(turned * rope[0], turned.roll(self._head_dim // 2, -1), rope[1])
        queries, keys = turned[:, :, : self._heads].transpose(1, 2), turned[:, :, self._heads :].transpose(1, 2)
        values = values.transpose(1, 2)
        cache.write(index, keys, values, where)
        window = layer.window
        # behind nothing, the causal kernel needs no mask: long prompts stay affordable
        if cache.extent == 0 and not cache.static and (window is None or window >= fresh):
            out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=groups > 1)
        else:
            stored_keys, stored_values = cache.read(index, fresh)
            if window not in masks:
                masks[window] = decoding_mask(cache, fresh, groups, normed.dtype, window=window)
            out = folded_attention(queries, stored_keys, stored_values, masks[window])
        return out.transpose(1, 2).reshape(rows, fresh, self._heads * self._head_dim)


def _fused(linears: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """One weight and bias for several linear layers, whose own parameters become views of them."""
    if len(linears) == 1:
        return linears[0].weight.detach(), None if linears[0].bias is None else linears[0].bias.detach()
    weight = torch.cat([linear.weight.detach() for linear in linears])
    bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
    start = 0
    for linear in linears:
        stop = start + linear.weight.shape[0]
        linear.weight = nn.Parameter(weight[start:stop], requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias[start:stop], requires_grad=False)
        start = stop
    return weight, bias
