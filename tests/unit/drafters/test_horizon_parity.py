"""Blocks that the inclusions build decode as they were trained: short horizons, revealed slots, isolation."""

from __future__ import annotations

import pytest
import torch

from specdraft.drafters import DFlash
from specdraft.objectives import IntraBlockUnmasking, MixedHorizon, all_anchors
from specdraft.types import DraftBatch

B, MASK = 8, 49


@pytest.fixture
def setup(spec):
    """Batch of two packed documents and one padded row, its features, and a frozen embedding."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(40, (2, 24), generator=generator)
    documents = torch.tensor([[0] * 14 + [1] * 10, [0] * 18 + [-1] * 6])
    positions = torch.tensor([[*range(14), *range(10)], [*range(18), *range(6)]])
    batch = DraftBatch(ids, documents >= 0, documents, positions)
    features = torch.randn(2, 24, spec.feature_size, generator=generator)
    table = torch.randn(50, spec.hidden_size, generator=generator)
    return batch, features, table


def build(inclusion, batch, first_slot):
    anchors, valid = all_anchors(batch, 100)
    return inclusion.build(
        batch,
        anchors,
        valid,
        block_size=B,
        first_slot=first_slot,
        mask_token_id=MASK,
        generator=torch.Generator().manual_seed(0),
    )


INCLUSIONS = {
    "mixed": MixedHorizon([2, 5, 8]),
    "unmasked": IntraBlockUnmasking(0.8, random_share=0.5, inner=MixedHorizon([3, 8])),
    "cut": MixedHorizon([2, 4]),
}


@pytest.mark.parametrize("sample_from_anchor", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"layer_fusion": True, "tap_norm": True}], ids=str)
@pytest.mark.parametrize("kind", INCLUSIONS)
@torch.no_grad()
def test_every_block_equals_decoding_at_its_own_size(setup, spec, sample_from_anchor, options, kind):
    batch, features, table = setup
    drafter = DFlash(
        spec, num_layers=2, block_size=B, init_std=0.2, sample_from_anchor=sample_from_anchor, **options
    ).eval()
    if drafter.tap_mix is not None:
        torch.nn.init.normal_(drafter.tap_mix)
    blocks = build(INCLUSIONS[kind], batch, drafter.first_slot)
    embeds = table[blocks.tokens]
    hidden = drafter(features, embeds, blocks.anchors, blocks.slots, batch.document_ids, batch.position_ids)
    sizes = set()
    for n, a in blocks.valid.nonzero().tolist():
        anchor, size = int(blocks.anchors[n, a]), int(blocks.slots[n, a].sum())
        start = anchor - int(batch.position_ids[n, anchor])
        cache = drafter.new_cache(1, 24)
        if anchor > start:
            drafter.extend(features[n : n + 1, start:anchor], cache)
            cache.advance(anchor - start)
        got = drafter.draft(embeds[n, a : a + 1, :size], cache)
        torch.testing.assert_close(got[0], hidden[n, a, :size], atol=1e-4, rtol=0)
        sizes.add(size)
    assert len(sizes) > 1


def test_a_short_block_sees_neither_its_missing_slots_nor_other_blocks(setup, spec):
    batch, features, table = setup
    drafter = DFlash(spec, num_layers=2, block_size=B, init_std=0.2)
    blocks = build(INCLUSIONS["mixed"], batch, 1)
    embeds = table[blocks.tokens].requires_grad_()
    features.requires_grad_()
    hidden = drafter(features, embeds, blocks.anchors, blocks.slots, batch.document_ids, batch.position_ids)
    n, a = (blocks.valid & (blocks.slots.sum(-1) == 5)).nonzero()[-1].tolist()
    own = hidden[n, a][blocks.supervised[n, a]]
    gradients = torch.autograd.grad((own * torch.randn_like(own)).sum(), [features, embeds])
    touched = gradients[1].abs().sum(-1) > 0
    want = torch.zeros_like(touched)
    want[n, a, :5] = True
    assert torch.equal(touched, want)
    anchor = int(blocks.anchors[n, a])
    index = torch.arange(24)
    seen = (batch.document_ids[n] == batch.document_ids[n, anchor]) & (index < anchor)
    assert torch.equal(gradients[0][n].abs().sum(-1) > 0, seen)
