"""Blocks that an inclusion builds over every anchor of a batch."""

from __future__ import annotations

import torch

from specdraft.objectives import all_anchors

MASK = 60  # no token of the batches


def build(inclusion, batch, size=8, first_slot=1, seed=0):
    anchors, valid = all_anchors(batch, 1000)
    return inclusion.build(
        batch,
        anchors,
        valid,
        block_size=size,
        first_slot=first_slot,
        mask_token_id=MASK,
        generator=torch.Generator().manual_seed(seed),
    )
