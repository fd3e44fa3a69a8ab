import pytest
import torch
from data_fakes import many_rows

from specdraft.data.loader import ResumableLoader
from specdraft.data.sampler import EpochBatchSampler
from specdraft.data.tokens import Examples, TokenisedRows


def examples(count):
    rows = TokenisedRows()
    for i, row in enumerate(many_rows(count)):
        rows.append(row["id"], row["family"], [i, i, i][: 1 + i % 3], [True] * (1 + i % 3))
    return Examples(rows)


def loader(count=23, batch_size=3, workers=0, **options):
    return ResumableLoader(examples(count), EpochBatchSampler(count, batch_size, **options), num_workers=workers)


def seen(batches):
    return [batch.input_ids[:, 0].tolist() for batch in batches]


def test_order_depends_on_seed_and_epoch_only():
    def order(seed, epoch):
        sampler = EpochBatchSampler(50, 4, seed=seed)
        sampler.set_epoch(epoch)
        torch.rand(3)  # the global generator has no say
        return sampler.order()

    assert order(0, 1) == order(0, 1)
    assert sorted(order(0, 1)) == list(range(50))
    orders = {tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_training_shards_are_disjoint_and_equally_long(world):
    samplers = [EpochBatchSampler(23, 3, rank=rank, world_size=world) for rank in range(world)]
    shards = [[row for batch in sampler for row in batch] for sampler in samplers]
    flat = [row for shard in shards for row in shard]
    assert len(set(flat)) == len(flat) == 23 // world * world
    assert len({len(list(sampler)) for sampler in samplers} | {len(samplers[0])}) == 1


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_evaluation_shards_cover_every_row_once(world):
    samplers = [EpochBatchSampler(10, 3, shuffle=False, rank=rank, world_size=world) for rank in range(world)]
    flat = [row for sampler in samplers for batch in sampler for row in batch]
    assert sorted(row for row in flat if row >= 0) == list(range(10))
    assert len({len(list(sampler)) for sampler in samplers} | {len(samplers[0])}) == 1


def test_filler_rows_are_not_supervised():
    data = examples(5)
    assert data[~2]["tokens"].equal(data[2]["tokens"])
    assert data[2]["mask"].any()
    assert not data[~2]["mask"].any()


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_continues_at_the_exact_next_batch(workers):
    straight = loader()
    straight.batch_sampler.set_epoch(2)
    whole = seen(straight)
    assert len(whole) == len(straight) == 8

    stopped = loader(workers=workers)
    stopped.batch_sampler.set_epoch(2)
    iterator = iter(stopped)
    head = seen(next(iterator) for _ in range(3))
    state = stopped.state_dict()  # while workers have prefetched more
    assert state["consumed"] == 3

    resumed = loader(workers=workers)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    tail = seen(resumed)
    assert head + tail == whole
    assert len(resumed) == 8

    assert seen(resumed) == whole  # another pass is a whole one
    resumed.batch_sampler.set_epoch(3)
    assert seen(resumed) != whole


def test_a_finished_epoch_resumes_with_the_next_one():
    first = loader()
    assert len(seen(first)) == 8
    second = loader()
    second.load_state_dict(first.state_dict())
    second.batch_sampler.set_epoch(1)
    first.batch_sampler.set_epoch(1)
    assert seen(second) == seen(first)


def test_a_state_of_other_data_starts_the_epoch_again():
    old = loader()
    next(iter(old))
    new = loader(batch_size=2)
    with pytest.warns(UserWarning, match="batch_size 3 -> 2"):
        new.load_state_dict(old.state_dict())
    assert len(seen(new)) == len(new) == 12


def test_impossible_shards_are_refused():
    with pytest.raises(ValueError, match="2 training rows cannot be shared out over 4 ranks"):
        EpochBatchSampler(2, 1, world_size=4)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        EpochBatchSampler(2, 0)
