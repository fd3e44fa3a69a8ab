"""The training forward and the decoding forward are the same function."""

from __future__ import annotations

import pytest
import torch

from specdraft.drafters import DFlash

CASES = [
    {},
    {"sample_from_anchor": True},
    {"causal": True},
    {"sliding_window": 6},
    {"causal": True, "sliding_window": 3},
    {"layer_fusion": True, "tap_norm": True},
    {"conv_kernel_size": 2, "conv_group_size": 4},
    {"conv_kernel_size": 3, "conv_group_size": 6, "causal": True},
    {"tap_norm": True, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 6},
]


def decode(drafter: DFlash, features: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
    """Feed the context in uneven pieces, then draft one block of one request."""
    cache = drafter.new_cache(1, features.shape[1] + 1)
    for piece in features.split(3, 1):
        drafter.extend(piece, cache)
        cache.advance(piece.shape[1])
    return drafter.draft(embeds, cache)


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("documents", [((9, 7, 5), (6, 11)), ((14,), (9,))], ids=["packed", "padded"])
@torch.no_grad()
def test_every_block_decodes_as_it_was_trained(options, documents, make_blocks, spec) -> None:
    blocks = make_blocks(documents)
    drafter = DFlash(spec, num_layers=3, block_size=4, init_std=0.2, **options)
    for name, parameter in drafter.named_parameters():
        if "_conv." in name:
            parameter.normal_(std=0.3)
    hidden = drafter(*blocks.tensors())
    for n in range(len(documents)):
        for a, anchor in enumerate(blocks.anchors[n].tolist()):
            start = anchor - int(blocks.position_ids[n, anchor])
            horizon = int(blocks.slots[n, a].sum())  # a shorter horizon is a smaller block
            got = decode(drafter, blocks.features[n : n + 1, start:anchor], blocks.embeds[n, a : a + 1, :horizon])
            torch.testing.assert_close(got[0], hidden[n, a, :horizon], atol=1e-4, rtol=0)


@torch.no_grad()
def test_rows_of_a_decoding_batch_progress_alone(make_blocks, spec) -> None:
    blocks = make_blocks(((14,), (9,)))
    drafter = DFlash(spec, num_layers=2, block_size=4, init_std=0.2)
    lengths = torch.tensor([12, 5])
    cache = drafter.new_cache(2, 14)
    drafter.extend(blocks.features[:, :9], cache)
    cache.advance(torch.tensor([9, 2]))
    drafter.draft(blocks.embeds[:, 0], cache)  # written behind the lengths, then overwritten
    drafter.extend(torch.stack([blocks.features[0, 9:12], blocks.features[1, 2:5]]), cache)
    cache.advance(3)
    before = cache.lengths.clone()
    got = drafter.draft(blocks.embeds[:, 1], cache)
    assert torch.equal(cache.lengths, before)
    assert torch.equal(before, lengths)
    for n, length in enumerate(lengths.tolist()):
        want = decode(drafter, blocks.features[n : n + 1, :length], blocks.embeds[n : n + 1, 1])
        torch.testing.assert_close(got[n], want[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_block_fits_behind_a_full_cache(spec) -> None:
    drafter = DFlash(spec, num_layers=1, block_size=4)
    cache = drafter.new_cache(1, 5)
    drafter.extend(torch.randn(1, 5, spec.feature_size), cache)
    cache.advance(5)
    assert torch.isfinite(drafter.draft(torch.randn(1, 4, spec.hidden_size), cache)).all()
