"""Contract of a drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from specdraft.cache import KeyValueCache
from specdraft.types import TargetSpec


class Drafter(nn.Module, ABC):
    """Block-parallel network that turns target features and a block of input embeddings into hidden states.

    Embedding and head belong to the frozen target: a drafter holds neither. The training forward and the decoding
    forward must agree: for any anchor the hidden states of :meth:`forward` equal those of :meth:`extend` with the
    features before the anchor followed by :meth:`draft`.

    Args:
        spec: The target that the drafter is made for.
        block_size: Input slots B of a block, the anchor included.
        sample_from_anchor: Whether slot ``i`` predicts position ``p + 1 + i`` (K = B) and not ``p + i`` (K = B - 1).

    Raises:
        ValueError: If the block leaves nothing to draft.
    """

    def __init__(self, spec: TargetSpec, block_size: int = 16, sample_from_anchor: bool = False) -> None:
        super().__init__()
        if block_size < (1 if sample_from_anchor else 2):
            raise ValueError(f"block_size {block_size} leaves nothing to draft; use at least 2")
        self.spec = spec
        self.block_size = block_size
        self.sample_from_anchor = sample_from_anchor

    @property
    def num_drafts(self) -> int:
        """Drafts K per round of a full block."""
        return self.block_size - (0 if self.sample_from_anchor else 1)

    @property
    def first_slot(self) -> int:
        """First slot that predicts a token: 0 with ``sample_from_anchor``, else 1."""
        return 0 if self.sample_from_anchor else 1

    @abstractmethod
    def forward(
        self,
        features: Tensor,
        embeds: Tensor,
        anchors: Tensor,
        slots: Tensor,
        document_ids: Tensor,
        position_ids: Tensor,
    ) -> Tensor:
        """Training forward over many blocks per row.

        A slot sees the context positions of its own document strictly before its anchor, and the existing slots of
        its own block.

        Args:
            features: ``[N, L, T * H]`` concatenated taps, any floating-point dtype.
            embeds: ``[N, A, B, H]`` input embeddings of the blocks.
            anchors: ``[N, A]`` int64 index of each anchor in its row.
            slots: ``[N, A, B]`` bool, slots that exist.
            document_ids: ``[N, L]`` int64, -1 for padding.
            position_ids: ``[N, L]`` int64; slot ``i`` sits at the anchor's position ``+ i``.

        Returns:
            ``[N, A, B, H]`` hidden states after the final norm; arbitrary but finite where a slot does not exist.
        """

    @abstractmethod
    def new_cache(self, rows: int, capacity: int) -> KeyValueCache:
        """Empty context cache for ``rows`` requests of at most ``capacity`` positions, on the drafter's device."""

    @abstractmethod
    def extend(self, features: Tensor, cache: KeyValueCache) -> None:
        """Write the context of ``[N, n, T * H]`` features behind ``cache.lengths``; the lengths do not move."""

    @abstractmethod
    def draft(self, embeds: Tensor, cache: KeyValueCache) -> Tensor:
        """Hidden states ``[N, b, H]`` of one block of embeddings ``[N, b, H]``, slot ``i`` at ``cache.lengths + i``."""

    def extra_state_for_checkpoint(self) -> dict[str, Any]:
        """Facts that decide how the weights must be used: block size and slot convention, builtins only."""
        return {"block_size": self.block_size, "sample_from_anchor": self.sample_from_anchor}
