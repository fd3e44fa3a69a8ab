from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specdraft.drafters import BlockLayout
from specdraft.types import TargetSpec


@dataclass
class Blocks:
    """Random blocks over packed or padded rows."""

    features: Tensor
    embeds: Tensor
    anchors: Tensor
    slots: Tensor
    document_ids: Tensor
    position_ids: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return self.features, self.embeds, self.anchors, self.slots, self.document_ids, self.position_ids

    def layout(self, causal: bool = False, window: int | None = None) -> BlockLayout:
        return BlockLayout(self.anchors, self.slots, self.document_ids, self.position_ids, causal, window)


@pytest.fixture
def spec() -> TargetSpec:
    return TargetSpec(
        "tiny", hidden_size=24, vocab_size=50, num_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=40, taps=(1, 3, 4),
    )  # fmt: skip


@pytest.fixture
def make_blocks(spec: TargetSpec) -> Callable[..., Blocks]:
    """Build rows from the lengths of their documents; every row holds an anchor at a document's first token."""

    def make(
        documents: Sequence[Sequence[int]] = ((9, 7, 5), (6, 11)), count: int = 5, size: int = 4, ragged: bool = True
    ) -> Blocks:
        length = max(map(sum, documents))
        ids = torch.full((len(documents), length), -1)
        positions = torch.zeros_like(ids)
        for row, lengths in enumerate(documents):
            start = 0
            for number, n in enumerate(lengths):
                ids[row, start : start + n] = number
                positions[row, start : start + n] = torch.arange(n)
                start += n
        anchors = torch.stack([torch.randperm(sum(lengths))[:count].sort().values for lengths in documents])
        anchors[:, 0] = 0
        horizons = torch.randint(1, size + 1, anchors.shape) if ragged else torch.full_like(anchors, size)
        slots = torch.arange(size) < horizons[..., None]
        slots[:, -1] = True
        features = torch.randn(len(documents), length, spec.feature_size) * 10
        embeds = torch.randn(len(documents), count, size, spec.hidden_size)
        return Blocks(features, embeds, anchors, slots, ids, positions)

    torch.manual_seed(0)
    return make
