"""DFlash: a block-parallel drafter with the target's features injected as keys and values."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from specdraft.attention import decoding_mask, folded_attention
from specdraft.cache import KeyValueCache
from specdraft.drafters.automatic_attention import AutomaticAttention
from specdraft.drafters.base import Drafter
from specdraft.drafters.block_attention import BlockAttention
from specdraft.drafters.block_layout import BlockLayout
from specdraft.drafters.convolution import BlockConvolution
from specdraft.drafters.layers import KeysValues, Layer, Projections, RMSNorm
from specdraft.drafters.rope import RotaryEmbedding
from specdraft.types import TargetSpec


class DFlash(Drafter):
    """The DFlash backbone (arXiv 2602.06036).

    The taps of the target are fused once, ``c = hidden_norm(fc(taps))``, or once per layer. Every layer draws queries
    from the block only, and keys and values from ``[c ; block]`` through the same projections. State-dict names are
    those of the published checkpoints; embedding and head stay with the target.

    Linear weights start normal with ``init_std``, norms at one, as in the Qwen3 layers that the published drafters
    start from. Residual outputs are not scaled down with depth: all mask slots enter with one embedding and differ
    only by what the attention adds, so that damping it would slow the start, and a drafter is only a few layers deep.

    Args:
        spec: The target that the drafter is made for.
        num_layers: Decoder layers.
        block_size: Input slots B of a block, the anchor included.
        sample_from_anchor: Whether slot ``i`` predicts the token at ``p + 1 + i`` and not at ``p + i``.
        tap_norm: RMS-normalise every tap on its own before ``fc``. An extension of specdraft, absent from the public
            formats: taps carry single activations of thousands that otherwise drown the rest in ``hidden_norm``.
        layer_fusion: Give every draft layer a context of its own, ``hidden_norm(fc(sum_t softmax(mix_l)_t tap_t))``
            with learned ``mix`` ``[num_layers, T]`` and an ``fc`` from H to H (after DFlare, arXiv 2606.02091), so that
            all layers of the target can be tapped at little cost. Best with ``tap_norm``, since the taps of a target
            differ in scale. Absent from the public formats.
        causal: Whether a slot sees only earlier slots of its block (default: all of them).
        sliding_window: Positions that a slot sees, its own included; None for all.
        attention: Implementation of the training attention; None chooses by device.
        num_attention_heads: Query heads; None takes the target's.
        num_key_value_heads: Key/value heads; None takes the target's.
        head_dim: Width of a head; None takes the target's.
        intermediate_size: Width of the MLP; None takes the target's.
        rope_parameters: Rotary embedding as transformers names it; None takes the target's.
        conv_kernel_size: Slots that DFlash 2's convolutions around attention and MLP see, the own one included (2 as
            published); 0 for none. See :class:`specdraft.drafters.convolution.BlockConvolution`.
        conv_group_size: Channels that share a dynamic kernel of theirs.
        init_std: Standard deviation of the initial linear weights.
        dropout: Share of the values dropped, while training, from the fused context and from what attention and MLP
            add: more acceptance where a few thousand conversations are seen many times. Decoding knows nothing of it.

    Raises:
        ValueError: If a size is out of range, the heads do not group, or the rotary embedding is not supported.
    """

    def __init__(
        self,
        spec: TargetSpec,
        num_layers: int = 5,
        block_size: int = 16,
        sample_from_anchor: bool = False,
        tap_norm: bool = False,
        layer_fusion: bool = False,
        causal: bool = False,
        sliding_window: int | None = None,
        attention: BlockAttention | None = None,
        num_attention_heads: int | None = None,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        intermediate_size: int | None = None,
        rope_parameters: dict[str, Any] | None = None,
        conv_kernel_size: int = 0,
        conv_group_size: int = 16,
        init_std: float = 0.02,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(spec, block_size, sample_from_anchor)
        self.causal = causal
        self.sliding_window = sliding_window
        self.num_attention_heads = spec.num_attention_heads if num_attention_heads is None else num_attention_heads
        self.num_key_value_heads = spec.num_key_value_heads if num_key_value_heads is None else num_key_value_heads
        self.head_dim = spec.head_dim if head_dim is None else head_dim
        self.intermediate_size = spec.intermediate_size if intermediate_size is None else intermediate_size
        self.rope_parameters = spec.rope_parameters if rope_parameters is None else rope_parameters
        if conv_kernel_size < 0:
            raise ValueError(f"conv_kernel_size must be 0 for none or positive, got {conv_kernel_size}")
        self.convolution = (conv_kernel_size, conv_group_size) if conv_kernel_size else None
        self.init_std = init_std
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a share of the values, 0 <= dropout < 1, got {dropout}")
        self._check_sizes(num_layers)
        size, eps = spec.hidden_size, spec.rms_norm_eps
        heads = (self.num_attention_heads, self.num_key_value_heads, self.head_dim)
        self.tap_norms = nn.ModuleList(RMSNorm(size, eps) for _ in spec.taps) if tap_norm else None
        self.tap_mix = nn.Parameter(torch.zeros(num_layers, len(spec.taps))) if layer_fusion else None
        self.fc = nn.Linear(size if layer_fusion else spec.feature_size, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            Layer(Projections(size, *heads, eps), size, self.intermediate_size, eps, dropout, self.convolution)
            for _ in range(num_layers)
        )
        self.norm = RMSNorm(size, eps)
        self.rope = RotaryEmbedding(self.rope_parameters, self.head_dim)
        self.attention = AutomaticAttention(self.head_dim) if attention is None else attention
        self.reset_parameters()

    def _check_sizes(self, num_layers: int) -> None:
        sizes = {"num_layers": num_layers, "sliding_window": 1 if self.sliding_window is None else self.sliding_window}
        names = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
        for name, value in {**sizes, **{name: getattr(self, name) for name in names}}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} query heads do not divide into {self.num_key_value_heads} groups; "
                "choose num_key_value_heads that divides num_attention_heads"
            )

    def reset_parameters(self) -> None:
        """Draw the initial weights anew; also fills a drafter that was built on the meta device."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.init_std)
            elif isinstance(module, RMSNorm):
                nn.init.ones_(module.weight)
        for module in self.modules():
            if isinstance(module, BlockConvolution):
                module.reset_parameters()
        if self.tap_mix is not None:
            nn.init.zeros_(self.tap_mix)  # the mean of the taps

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    def fuse(self, features: Tensor) -> list[Tensor]:
        """Fuse ``[N, n, T * H]`` taps of any floating-point dtype into the context ``[N, n, H]`` of each layer.

        Without ``layer_fusion`` all layers share one tensor.

        Raises:
            ValueError: If the width is not ``T * H``.
        """
        if features.shape[-1] != self.spec.feature_size:
            raise ValueError(
                f"features are {features.shape[-1]} wide, the drafter expects {len(self.spec.taps)} taps "
                f"{list(self.spec.taps)} of {self.spec.hidden_size} = {self.spec.feature_size}; extract those taps"
            )
        features = features.to(self.fc.weight.dtype)
        if self.tap_norms is None:
            weight = None
        elif torch.is_grad_enabled() and self.tap_mix is None:
            # the weights of the norms are folded into fc: no gradient has to reach the features, the largest tensor
            features = self._tap_norms(features, affine=False)
            weight = self.fc.weight * torch.cat(list(self.tap_norms.parameters()))
        else:
            features, weight = self._tap_norms(features, affine=True), None
        if self.tap_mix is None:
            fused = self.fc(features) if weight is None else F.linear(features, weight)
            return [self.dropout(self.hidden_norm(fused))] * self.num_layers
        mixed = torch.einsum(
            "nlth,dt->dnlh", features.unflatten(-1, (len(self.spec.taps), -1)), self.tap_mix.softmax(-1)
        )
        return list(self.dropout(self.hidden_norm(self.fc(mixed))))

    def _tap_norms(self, features: Tensor, affine: bool) -> Tensor:
        """Every tap of ``[N, n, T * H]`` normalised on its own."""
        assert self.tap_norms is not None
        norms = cast("list[RMSNorm]", list(self.tap_norms))
        taps = features.unflatten(-1, (len(norms), -1))
        if not affine:
            return norms[0].scale(taps).flatten(-2)
        wide = norms[0].scale(taps if taps.dtype == torch.float64 else taps.float())
        return (wide * torch.stack([norm.weight for norm in norms])).to(features.dtype).flatten(-2)

    @override
    def forward(
        self,
        features: Tensor,
        embeds: Tensor,
        anchors: Tensor,
        slots: Tensor,
        document_ids: Tensor,
        position_ids: Tensor,
    ) -> Tensor:
        self._check_blocks(features, embeds, anchors, slots, document_ids, position_ids)
        layout = BlockLayout(anchors, slots, document_ids, position_ids, self.causal, self.sliding_window)
        plan = self.attention.prepare(layout)

        def attend(queries: Tensor, own: KeysValues, past: KeysValues | None) -> Tensor:
            assert past is not None
            return self.attention(queries, past, own, plan)

        contexts, past_rope = self.fuse(features), self.rope(position_ids)
        rope = self.rope(layout.slot_positions().flatten(1))
        hidden = embeds.to(self.fc.weight.dtype).flatten(1, 2)
        for layer, context in zip(self.layers, contexts, strict=True):
            hidden = layer(hidden, rope, attend, (context, past_rope), embeds.shape[2])
        return self.norm(hidden).view(embeds.shape)

    def _check_blocks(
        self,
        features: Tensor,
        embeds: Tensor,
        anchors: Tensor,
        slots: Tensor,
        document_ids: Tensor,
        position_ids: Tensor,
    ) -> None:
        if embeds.ndim != 4 or embeds.shape[-1] != self.spec.hidden_size or embeds.shape[2] > self.block_size:
            raise ValueError(
                f"embeds {tuple(embeds.shape)} must be [N, A, B, {self.spec.hidden_size}] with B <= {self.block_size}"
            )
        rows, count, size, _ = embeds.shape
        length = features.shape[1]
        wanted = {
            "features": (features, (rows, length, features.shape[-1])),
            "anchors": (anchors, (rows, count)),
            "slots": (slots, (rows, count, size)),
            "document_ids": (document_ids, (rows, length)),
            "position_ids": (position_ids, (rows, length)),
        }
        for name, (tensor, shape) in wanted.items():
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{name} is {tuple(tensor.shape)} but must be {shape}, to go with embeds {tuple(embeds.shape)} "
                    f"and features {tuple(features.shape)}"
                )

    @override
    def new_cache(self, rows: int, capacity: int) -> KeyValueCache:
        weight = self.fc.weight
        # a block is written behind the context without being committed, hence the extra room
        room = capacity + self.block_size
        return KeyValueCache(
            self.num_layers, rows, room, self.num_key_value_heads, self.head_dim, weight.dtype, weight.device
        )

    @override
    def extend(self, features: Tensor, cache: KeyValueCache) -> None:
        where = cache.positions(features.shape[1])
        rope = self.rope.looked_up(where, cache.capacity)
        for index, (layer, context) in enumerate(zip(self.layers, self.fuse(features), strict=True)):
            keys, values = layer.self_attn.keys_values(context, rope)  # type: ignore[union-attr, operator]
            cache.write(index, keys.transpose(1, 2), values.transpose(1, 2), where)

    @override
    def draft(self, embeds: Tensor, cache: KeyValueCache) -> Tensor:
        if embeds.ndim != 3 or embeds.shape[-1] != self.spec.hidden_size or embeds.shape[1] > self.block_size:
            raise ValueError(
                f"embeds {tuple(embeds.shape)} must be [N, b, {self.spec.hidden_size}] with b <= {self.block_size}, "
                "the block that the drafter was trained for"
            )
        count = embeds.shape[1]
        where = cache.positions(count)
        rope = self.rope.looked_up(where, cache.capacity)
        hidden = embeds.to(self.fc.weight.dtype)
        groups = self.num_attention_heads // self.num_key_value_heads
        dtype = cache.keys[0].dtype
        mask = decoding_mask(cache, count, groups, dtype, causal=self.causal, window=self.sliding_window)
        for index, layer in enumerate(self.layers):

            def attend(queries: Tensor, own: KeysValues, past: KeysValues | None, index: int = index) -> Tensor:
                cache.write(index, own[0].transpose(1, 2), own[1].transpose(1, 2), where)
                keys, values = cache.read(index, count)
                return folded_attention(queries.transpose(1, 2).to(dtype), keys, values, mask).transpose(1, 2)

            hidden = layer(hidden, rope, attend)
        return self.norm(hidden)

    @override
    def extra_state_for_checkpoint(self) -> dict[str, Any]:
        kernel, group = self.convolution or (0, 0)
        return {
            **super().extra_state_for_checkpoint(),
            "causal": self.causal,
            "sliding_window": self.sliding_window,
            "rope_parameters": dict(self.rope_parameters),
            **({"conv_kernel_size": kernel, "conv_group_size": group} if kernel else {}),
        }
