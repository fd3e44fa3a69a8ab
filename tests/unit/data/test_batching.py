"""Packed and bucketed epochs: no row lost or doubled, bounded batches, exact resume, less padding."""

from __future__ import annotations

import pytest
import torch
from data_fakes import FakeTarget, many_rows, write_jsonl

from specdraft.data import Bucketed, ChatDataModule, OnlineFeatures, Packed, Padded
from specdraft.data.batching import Share
from specdraft.data.loader import ResumableLoader
from specdraft.data.packing import pack
from specdraft.data.tokens import Examples, TokenisedRows, collate

LENGTHS = torch.randint(3, 40, (103,), generator=torch.Generator().manual_seed(5)).tolist()
KINDS = [Packed(), Packed(64), Packed(64, 256), Bucketed(4), Bucketed(8, 120)]
IDS = ["packed", "packed-64", "packed-tokens", "bucketed", "bucketed-tokens"]


def rows_of(batches):
    """Row indices of batches of rows or packs."""
    return [row for batch in batches for one in batch for row in (one if isinstance(one, tuple) else (one,))]


def loader(batching, lengths=LENGTHS, **share):
    rows = TokenisedRows()
    for i, length in enumerate(lengths):
        rows.append(f"r{i}", "", [i] * length, [True] * length)
    return ResumableLoader(Examples(rows), batching.sampler(lengths, 4, 40, Share(**share)))


@pytest.mark.parametrize("batching", KINDS, ids=IDS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_epochs_hold_every_row_once_whatever_the_ranks(batching, world):
    samplers = [batching.sampler(LENGTHS, 4, 40, Share(7, rank=rank, world_size=world)) for rank in range(world)]
    previous = None
    for epoch in range(3):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shards = [list(sampler) for sampler in samplers]
        assert {len(shard) for shard in shards} == {len(sampler) for sampler in samplers}  # equal on all ranks
        assert len(shards[0]) == len(samplers[0])
        rows = [row for shard in shards for row in rows_of(shard)]
        assert len(set(rows)) == len(rows)
        if world == 1:
            assert sorted(rows) == list(range(len(LENGTHS)))
        assert rows != previous
        previous = rows
    # deterministic in (seed, epoch)
    again = batching.sampler(LENGTHS, 4, 40, Share(7, world_size=world))
    again.set_epoch(2)
    assert list(again) == shards[0]
    other = batching.sampler(LENGTHS, 4, 40, Share(8, world_size=world))
    other.set_epoch(2)
    assert list(other) != shards[0]


@pytest.mark.parametrize("batching", KINDS, ids=IDS)
def test_batches_stay_within_their_bounds(batching):
    rows, length = batching.largest(4, 40)
    for batch in batching.sampler(LENGTHS, 4, 40, Share()):
        sizes = [sum(LENGTHS[row] for row in (one if isinstance(one, tuple) else (one,))) for one in batch]
        assert max(sizes) <= length
        if batching.tokens_per_batch is None:
            assert len(batch) <= rows
        else:
            assert len(batch) * max(sizes) <= batching.tokens_per_batch


def padding(batching):
    batches = list(loader(batching, seed=1))
    real = sum(int((batch.document_ids >= 0).sum()) for batch in batches)
    assert real == sum(LENGTHS)
    return 1 - real / sum(batch.input_ids.numel() for batch in batches)


def test_padding_falls():
    padded, bucketed, packed = padding(Padded()), padding(Bucketed(8)), padding(Packed(64))
    assert padded > 0.25
    assert bucketed < 0.15
    assert packed < 0.06


def test_batches_of_long_and_short_rows_are_mixed():
    longest = [max(LENGTHS[row] for row in batch) for batch in Bucketed(8).sampler(LENGTHS, 4, 40, Share())]
    assert longest != sorted(longest)
    later = Bucketed(8).sampler(LENGTHS, 4, 40, Share())
    later.set_epoch(1)
    first = {frozenset(batch) for batch in Bucketed(8).sampler(LENGTHS, 4, 40, Share())}
    # other neighbours too, but for a coincidence
    assert len(first & {frozenset(batch) for batch in later if len(batch) > 2}) < 3


@pytest.mark.parametrize("batching", KINDS, ids=IDS)
def test_resume_continues_at_the_exact_next_batch(batching):
    def seen(batches):
        return [batch.input_ids.tolist() for batch in batches]

    straight = loader(batching)
    straight.batch_sampler.set_epoch(1)
    whole = seen(straight)
    stopped = loader(batching)
    stopped.batch_sampler.set_epoch(1)
    iterator = iter(stopped)
    head = seen(next(iterator) for _ in range(5))
    resumed = loader(batching)
    resumed.load_state_dict(stopped.state_dict())
    assert head + seen(resumed) == whole


def test_a_state_of_another_packing_starts_the_epoch_again():
    old, new = loader(Packed(64)), loader(Packed(64), [*LENGTHS[1:], 9])
    next(iter(old))
    with pytest.warns(UserWarning, match="packs"):
        new.load_state_dict(old.state_dict())
    plain = loader(Padded())
    with pytest.warns(UserWarning, match="the data changed since the checkpoint"):
        plain.load_state_dict(old.state_dict())


def test_packs_are_nearly_full_and_never_too_full():
    packs = pack(LENGTHS, 64, seed=0)
    sizes = [sum(LENGTHS[row] for row in one) for one in packs]
    assert max(sizes) <= 64
    assert len(packs) <= -(-sum(LENGTHS) // 64) + 1
    assert pack([], 64, 0) == []
    with pytest.raises(ValueError, match="a row of 39 tokens does not fit pack_length 30"):
        pack([5, 39], 30, 0)


def test_packed_rows_keep_documents_positions_and_masks_apart():
    rows = TokenisedRows()
    for i, length in enumerate([3, 2, 4]):
        rows.append(
            f"r{i}", "a" if i < 2 else "b", list(range(10 * i, 10 * i + length)), [False] + [True] * (length - 1)
        )
    batch = collate([Examples(rows)[(0, 1)], Examples(rows)[(2,)], Examples(rows)[(2, ~1)]])
    assert batch.input_ids.tolist() == [[0, 1, 2, 10, 11, 0], [20, 21, 22, 23, 0, 0], [20, 21, 22, 23, 10, 11]]
    assert batch.document_ids.tolist() == [[0, 0, 0, 1, 1, -1], [0, 0, 0, 0, -1, -1], [0, 0, 0, 0, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 1]]
    assert batch.loss_mask.int().tolist() == [[0, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 0]]
    assert batch.families == ["a", "b", ""]


def test_the_data_module_packs_the_training_rows_alone(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", many_rows(40))
    target = FakeTarget()
    data = ChatDataModule(
        path, val_fraction=0.2, batch_size=2, max_length=64, features=OnlineFeatures(), batching=Packed()
    ).connect(target)
    batches = list(data.train_dataloader())
    assert max(int(batch.document_ids.max()) for batch in batches) > 0
    lengths = data.tokens("train").lengths
    assert sum(int((batch.document_ids >= 0).sum()) for batch in batches) == sum(lengths)
    assert all(int(batch.document_ids.max()) == 0 for batch in data.val_dataloader())
    with pytest.raises(ValueError, match="tokens_per_batch 50 holds no packed row of 64 tokens"):
        ChatDataModule(path, max_length=64, batching=Packed(tokens_per_batch=50)).connect(target).train_dataloader()
    with pytest.raises(ValueError, match="buckets must be at least 1, got 0"):
        Bucketed(0)
