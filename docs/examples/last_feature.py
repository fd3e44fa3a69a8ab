"""A drafter that sees one target feature: that of the token before the anchor."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from specdraft.cache import KeyValueCache
from specdraft.drafters import Drafter
from specdraft.types import TargetSpec


class LastFeature(Drafter):
    """Slot i is ``norm(embedding_i + fc(feature of the token before the anchor) + slot_i)``, through one MLP.

    Args:
        spec: The target that the drafter is made for.
        block_size: Input slots B of a block, the anchor included.
        sample_from_anchor: Whether slot ``i`` predicts the token at ``p + 1 + i`` and not at ``p + i``.
    """

    def __init__(self, spec: TargetSpec, block_size: int = 8, sample_from_anchor: bool = False) -> None:
        super().__init__(spec, block_size, sample_from_anchor)
        self.fc = nn.Linear(spec.feature_size, spec.hidden_size, bias=False)
        self.slot = nn.Parameter(torch.zeros(block_size, spec.hidden_size))
        self.mlp = nn.Sequential(nn.Linear(spec.hidden_size, spec.hidden_size), nn.SiLU())
        self.norm = nn.RMSNorm(spec.hidden_size, spec.rms_norm_eps)

    def _block(self, context: Tensor, embeds: Tensor) -> Tensor:
        """``[..., H]`` context and ``[..., b, H]`` embeddings to ``[..., b, H]``; training and decoding share it."""
        mixed = embeds + context[..., None, :] + self.slot[: embeds.shape[-2]]
        out: Tensor = self.norm(mixed + self.mlp(mixed))
        return out

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
        before = (anchors - 1).clamp(min=0)  # [N, A]; strictly before the anchor, whose own features do not exist yet
        same = document_ids.gather(1, before) == document_ids.gather(1, anchors)
        known = (same & (anchors > 0))[..., None]
        context = self.fc(features.to(self.fc.weight.dtype))
        context = context.gather(1, before[..., None].expand(-1, -1, context.shape[-1]))
        return self._block(context * known, embeds.to(context.dtype))

    @override
    def new_cache(self, rows: int, capacity: int) -> KeyValueCache:
        weight = self.fc.weight
        return KeyValueCache(1, rows, capacity + self.block_size, 1, weight.shape[0], weight.dtype, weight.device)

    @override
    def extend(self, features: Tensor, cache: KeyValueCache) -> None:
        context = self.fc(features.to(self.fc.weight.dtype))[:, None]  # [N, 1 head, n, H]
        cache.write(0, context, context)

    @override
    def draft(self, embeds: Tensor, cache: KeyValueCache) -> Tensor:
        rows = torch.arange(embeds.shape[0], device=embeds.device)
        context = cache.keys[0][rows, 0, cache.lengths - 1]  # every prompt has a token
        return self._block(context, embeds.to(context.dtype))
