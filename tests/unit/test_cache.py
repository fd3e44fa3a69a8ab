from __future__ import annotations

import pytest
import torch

from specdraft.cache import KeyValueCache


def filled(lengths, capacity=8, layers=2, heads=2, width=3, seed=0):
    """A cache whose row r holds ``lengths[r]`` random positions, and the tensors that were written."""
    cache = KeyValueCache(layers, len(lengths), capacity, heads, width)
    generator = torch.Generator().manual_seed(seed)
    written = [torch.randn(2, len(lengths), heads, max(lengths), width, generator=generator) for _ in range(layers)]
    for layer, (keys, values) in enumerate(written):
        cache.write(layer, keys, values)
    cache.advance(torch.tensor(lengths))
    return cache, written


def test_write_goes_behind_each_row():
    cache, written = filled([4, 1, 3])
    assert (cache.rows, cache.extent, cache.lengths.tolist()) == (3, 4, [4, 1, 3])
    fresh = torch.randn(2, 3, 2, 2, 3)
    cache.write(1, fresh[0], fresh[1])
    assert cache.lengths.tolist() == [4, 1, 3]  # writing commits nothing
    keys, values = cache.read(1, 2)
    assert keys.shape == (3, 2, 6, 3)
    for row, n in enumerate([4, 1, 3]):
        for which, stored in enumerate((keys, values)):
            assert torch.equal(stored[row, :, :n], written[1][which][row, :, :n])
            assert torch.equal(stored[row, :, n : n + 2], fresh[which][row])
    assert torch.equal(cache.read(0, 0)[0][0], written[0][0][0])  # the other layer is untouched


def test_rolling_back_is_writing_again():
    cache, _ = filled([2, 2])
    for _ in range(2):
        fresh = torch.randn(2, 2, 2, 3, 3)
        cache.write(0, fresh[0], fresh[1])
    assert torch.equal(cache.read(0, 3)[0][:, :, 2:5], fresh[0])


def test_positions_may_be_given():
    cache, other = filled([2, 5])[0], filled([2, 5])[0]
    fresh = torch.randn(2, 2, 2, 2, 3)
    assert cache.positions(2).tolist() == [[2, 3], [5, 6]]
    cache.write(0, fresh[0], fresh[1])
    other.write(0, fresh[0], fresh[1], other.positions(2))
    assert torch.equal(cache.keys[0], other.keys[0])


def test_read_returns_views():
    cache, _ = filled([2, 2])
    keys, _ = cache.read(0, 1)
    assert keys.data_ptr() == cache.keys[0].data_ptr()


def test_select_keeps_order():
    cache, written = filled([4, 1, 3])
    cache.select(torch.tensor([2, 1]))
    assert (cache.rows, cache.lengths.tolist(), cache.extent) == (2, [3, 1], 3)
    assert torch.equal(cache.keys[1][0, :, :3], written[1][0][2, :, :3])
    fresh = torch.randn(2, 2, 2, 1, 3)
    cache.write(0, fresh[0], fresh[1])
    assert torch.equal(cache.keys[0][1, :, 1], fresh[0][1, :, 0])
    cache.select(torch.tensor([], dtype=torch.int64))
    assert (cache.rows, cache.extent) == (0, 0)


def test_insert_overwrites_rows():
    cache, written = filled([4, 1, 3])
    other, others = filled([2, 1], capacity=2, seed=1)
    cache.insert(torch.tensor([2, 0]), other)
    assert (cache.lengths.tolist(), cache.extent) == ([1, 1, 2], 2)
    for layer in range(2):
        assert torch.equal(cache.keys[layer][2, :, :2], others[layer][0][0])
        assert torch.equal(cache.values[layer][0, :, :1], others[layer][1][1, :, :1])
        assert torch.equal(cache.keys[layer][1, :, :1], written[layer][0][1, :, :1])


def test_full_cache_and_wrong_shapes_are_refused():
    cache, _ = filled([4, 8])
    with pytest.raises(ValueError, match="8 positions cannot take 1 more behind 8"):
        cache.write(0, torch.zeros(2, 2, 1, 3), torch.zeros(2, 2, 1, 3))
    cache, _ = filled([1, 1])
    with pytest.raises(ValueError, match="2 rows of 2 heads of width 3"):
        cache.write(0, torch.zeros(2, 2, 1, 3), torch.zeros(2, 2, 1, 5))
    with pytest.raises(ValueError, match="layer 1 writes"):
        cache.write(1, torch.zeros(2, 1, 1, 3), torch.zeros(2, 1, 1, 3))


def test_known_extent_needs_no_look_at_the_device():
    cache = KeyValueCache(1, 2, 8, 1, 1)
    cache.advance(3, extent=3)
    cache.advance(torch.tensor([0, 2]), extent=5)
    assert (cache.lengths.tolist(), cache.extent) == ([3, 5], 5)
