from __future__ import annotations

import math

import pytest
import torch

from specdraft.attention import cached_attention, score_bias, visible_positions


def reference(queries, keys, values, lengths, causal, window, scale, softcap):
    """One query, one head, one position at a time."""
    rows, heads, fresh, width = queries.shape
    groups = heads // keys.shape[1]
    out = torch.zeros_like(queries)
    for row in range(rows):
        for head in range(heads):
            for j in range(fresh):
                own = int(lengths[row]) + j
                last = own if causal else int(lengths[row]) + fresh - 1
                seen = [s for s in range(last + 1) if window is None or s > own - window]
                scores = []
                for s in seen:
                    score = float(queries[row, head, j] @ keys[row, head // groups, s])
                    score *= width**-0.5 if scale is None else scale
                    scores.append(score if softcap is None else softcap * math.tanh(score / softcap))
                weights = torch.tensor(scores).softmax(0)
                out[row, head, j] = sum(w * values[row, head // groups, s] for w, s in zip(weights, seen, strict=True))
    return out


@pytest.mark.parametrize("few", [0, 32])  # the fused kernel, and the products that stand in for it
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize(("heads", "kv_heads", "scale"), [(4, 2, None), (3, 1, 0.3), (2, 2, None)])
def test_equals_the_loop(few, causal, window, softcap, heads, kv_heads, scale, monkeypatch):
    monkeypatch.setattr("specdraft.attention._FEW_QUERIES", few)
    generator = torch.Generator().manual_seed(0)
    lengths, fresh, stop = torch.tensor([5, 0, 2]), 3, 9
    queries = torch.randn(3, heads, fresh, 8, generator=generator)
    keys, values = torch.randn(2, 3, kv_heads, stop, 8, generator=generator)
    options = dict(causal=causal, window=window, scale=scale, softcap=softcap)
    got = cached_attention(queries, keys, values, lengths, **options)
    torch.testing.assert_close(got, reference(queries, keys, values, lengths, **options), atol=1e-5, rtol=1e-5)
    mask = score_bias(
        visible_positions(lengths, fresh, stop, causal=causal, window=window), heads // kv_heads, keys.dtype
    )
    prepared = cached_attention(queries, keys, values, lengths, scale=scale, softcap=softcap, mask=mask)
    torch.testing.assert_close(prepared, got, atol=0, rtol=0)


def test_what_lies_behind_a_row_does_not_matter():
    lengths = torch.tensor([2, 4])
    queries, keys, values = torch.randn(2, 2, 1, 4), torch.randn(2, 1, 8, 4), torch.randn(2, 1, 8, 4)
    before = cached_attention(queries, keys, values, lengths)
    keys[0, :, 3:], values[0, :, 3:], keys[1, :, 5:], values[1, :, 5:] = 1e4, 1e4, 1e4, 1e4
    torch.testing.assert_close(cached_attention(queries, keys, values, lengths), before, atol=0, rtol=0)


def test_visible_positions():
    seen = visible_positions(torch.tensor([1, 3]), 2, 6, window=2)
    assert seen.int().tolist() == [
        [[1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0]],
        [[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0]],
    ]
    assert visible_positions(torch.tensor([1]), 2, 4, causal=False).int().tolist() == [[[1, 1, 1, 0]] * 2]
