"""Which keys a slot of a training block may see: the one place that states the rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockLayout:
    """Where the blocks of a batch sit, and what their slots may see.

    A slot sees the context tokens of its own document with an index strictly below its anchor (the features of the
    anchor do not exist yet when decoding), and the existing slots of its own block. A window counts positions, the
    slot's own included. A slot always sees itself, so that no row of a softmax is ever empty: not the first token of
    a document, not a slot that does not exist.

    Attributes:
        anchors: ``[N, A]`` int64 index of each anchor in its row.
        slots: ``[N, A, B]`` bool, slots that exist.
        document_ids: ``[N, L]`` int64, -1 for padding.
        position_ids: ``[N, L]`` int64.
        causal: Whether a slot sees only itself and earlier slots of its block.
        window: Sliding window W in positions, or None.
    """

    anchors: Tensor
    slots: Tensor
    document_ids: Tensor
    position_ids: Tensor
    causal: bool = False
    window: int | None = None

    def slot_positions(self) -> Tensor:
        """Position of every slot, ``[N, A, B]`` int64: the anchor's plus the slot's number."""
        first = self.position_ids.gather(1, self.anchors)
        return first[..., None] + torch.arange(self.slots.shape[-1], device=first.device)

    def context_mask(self) -> Tensor:
        """Visible context: ``[N, A, 1, L]`` bool, or ``[N, A, B, L]`` with a window, which differs by slot."""
        documents = self.document_ids.gather(1, self.anchors)[..., None]  # [N, A, 1]
        index = torch.arange(self.document_ids.shape[1], device=self.anchors.device)
        seen = (self.document_ids[:, None] == documents) & (documents >= 0) & (index < self.anchors[..., None])
        if self.window is None:
            return seen[:, :, None]
        oldest = self.slot_positions() - self.window
        return seen[:, :, None] & (self.position_ids[:, None, None] > oldest[..., None])

    def block_mask(self) -> Tensor:
        """Visible slots of the own block: ``[N, A, B, B]`` bool, queries before keys."""
        size = self.slots.shape[-1]
        slot = torch.arange(size, device=self.slots.device)
        back = slot[:, None] - slot
        allowed = torch.ones_like(back, dtype=torch.bool)
        if self.causal:
            allowed &= back >= 0
        if self.window is not None:
            allowed &= back < self.window
        return (self.slots[:, :, None] & allowed) | (back == 0)
