"""Inclusion: which slots of a block exist, hold real tokens, and count in the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.types import BlockBatch, DraftBatch


@dataclass
class Layout:
    """What an inclusion decides; everything else follows from the data.

    Attributes:
        slots: ``[N, A, B]`` bool, slots that exist.
        revealed: ``[N, A, B]`` bool, slots that hold the ground-truth token instead of the mask token.
        width: No slot exists at or behind this number, known on the host; the blocks are cut to it, so that nobody
            computes slots that no block of the batch has. None for B.
    """

    slots: Tensor
    revealed: Tensor
    width: int | None = None


class Inclusion(ABC):
    """First factor of the objective: how a block is laid out.

    A subclass writes :meth:`layout`. Inclusions compose by nesting: one that takes another as an argument starts from
    its layout, removes slots or reveals more. Labels and supervision are derived once, at the end.

    Attributes:
        inner: The inclusion that this one starts from, or None.
        progress: Part of the training that is done, 0..1, for a curriculum.
    """

    inner: Inclusion | None = None
    progress: float = 1.0

    def set_progress(self, progress: float) -> None:
        """Tell this inclusion and those inside it which part of the training is done, 0..1."""
        self.progress = progress
        if self.inner is not None:
            self.inner.set_progress(progress)

    def trained_horizons(self, block_size: int, first_slot: int) -> list[int]:
        """Block sizes that a drafter meets while it is trained, ascending; the full block alone unless overridden.

        Args:
            block_size: Slots B of a full block.
            first_slot: First slot that predicts a token, 0 or 1.
        """
        return [block_size] if self.inner is None else self.inner.trained_horizons(block_size, first_slot)

    @abstractmethod
    def layout(self, known: Tensor, *, first_slot: int, generator: torch.Generator | None) -> Layout:
        """Decide which slots exist and which are revealed.

        Args:
            known: ``[N, A, B]`` bool, slots whose own token (anchor index + slot) is the anchor or a possible draft.
            first_slot: First slot that predicts a token, 0 or 1.
            generator: Source of randomness.

        Returns:
            The layout. Revealing a slot that is not known or does not exist has no effect.
        """

    def build(
        self,
        batch: DraftBatch,
        anchors: Tensor,
        valid: Tensor,
        *,
        block_size: int,
        first_slot: int,
        mask_token_id: int,
        generator: torch.Generator | None,
    ) -> BlockBatch:
        """Cut the blocks.

        Args:
            batch: Tokenised conversations.
            anchors: ``[N, A]`` int64.
            valid: ``[N, A]`` bool.
            block_size: Slots B of a block, the anchor included.
            first_slot: First slot that predicts a token: 1 if slot ``i`` predicts the token at ``p + i``, 0 if it
                predicts the one at ``p + 1 + i``.
            mask_token_id: Token of the slots that are not revealed.
            generator: Source of randomness; None for the global one.

        Returns:
            The blocks, see :class:`specdraft.types.BlockBatch`; B is smaller where the layout's ``width`` is.

        Raises:
            ValueError: If ``first_slot`` is neither 0 nor 1 or the block has no slot to predict.
        """
        if first_slot not in (0, 1):
            raise ValueError(f"first_slot must be 0 (predict from the anchor) or 1, got {first_slot}")
        if block_size <= first_slot:
            raise ValueError(f"block_size {block_size} leaves nothing to predict; use at least {first_slot + 1}")
        positions, tokens, run = _follow(batch, anchors, valid, block_size + 1)
        layout = self.layout(run[..., :-1], first_slot=first_slot, generator=generator)
        width = block_size if layout.width is None else layout.width
        own = slice(0, width)
        slots = layout.slots[..., own]
        revealed = layout.revealed[..., own] & slots & run[..., own]
        revealed[..., 0] = True  # the anchor is always given
        shift = 1 - first_slot  # the label of slot i is the own token of slot i + shift
        labelled = slice(shift, shift + width)
        supervised = run[..., labelled] & slots & valid[..., None]
        # a label that is shown in the block is no prediction
        shown = torch.nn.functional.pad(revealed, (0, 1))[..., labelled]
        return BlockBatch(
            anchors=anchors,
            valid=valid,
            tokens=tokens[..., own].masked_fill(~revealed, mask_token_id),
            slots=slots,
            labels=tokens[..., labelled],
            supervised=supervised & ~shown,
            label_positions=positions[..., labelled].clamp(max=batch.input_ids.shape[1] - 1),
        )


class FixedHorizon(Inclusion):
    """Every block has all its slots: the anchor, then masks (DFlash, arXiv 2602.06036)."""

    @override
    def layout(self, known: Tensor, *, first_slot: int, generator: torch.Generator | None) -> Layout:
        # filler blocks keep their slots too, so that no row of the attention is empty
        return Layout(slots=torch.ones_like(known), revealed=torch.zeros_like(known))


def _follow(batch: DraftBatch, anchors: Tensor, valid: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, tokens and the unbroken run of possible drafts from each anchor on, each ``[N, A, width]``."""
    length = batch.input_ids.shape[1]
    positions = anchors[..., None] + torch.arange(width, device=anchors.device)
    index = positions.clamp(max=length - 1).flatten(1)
    tokens, documents, mask = (
        values.gather(1, index).view_as(positions) for values in (batch.input_ids, batch.document_ids, batch.loss_mask)
    )
    allowed = mask & (documents == documents[..., :1]) & (positions < length)
    allowed[..., 0] = valid
    return positions, tokens, allowed.long().cumprod(-1).bool()
