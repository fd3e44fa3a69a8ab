from __future__ import annotations

import itertools

import pytest
import torch

from specdraft.objectives import all_anchors, anchor_candidates, sample_anchors


def slow_candidates(batch, min_labels=1):
    rows, length = batch.input_ids.shape
    out = [[] for _ in range(rows)]
    for n in range(rows):
        for p in range(length):
            span = range(p, p + min_labels + 1)
            if all(
                q < length and batch.loss_mask[n, q] and batch.document_ids[n, q] == batch.document_ids[n, p]
                for q in span
            ):
                out[n].append(p)
    return out


def chosen(anchors, valid):
    return [anchors[n][valid[n]].tolist() for n in range(len(anchors))]


@pytest.mark.parametrize("min_labels", [1, 2, 4, 40])
def test_candidates_equal_loop(batch, min_labels):
    got = anchor_candidates(batch, min_labels)
    assert [row.nonzero()[:, 0].tolist() for row in got] == slow_candidates(batch, min_labels)


def test_a_large_count_takes_every_candidate_sorted(batch):
    anchors, valid = sample_anchors(batch, 100, generator=None)
    assert chosen(anchors, valid) == slow_candidates(batch)
    assert anchors.dtype == torch.int64
    assert anchors.shape[1] == max(map(len, slow_candidates(batch)))
    assert (anchors[~valid] == 0).all()


def test_count_holds_per_document(batch):
    for seed in range(20):
        anchors, valid = sample_anchors(batch, 2, generator=torch.Generator().manual_seed(seed))
        for n, row in enumerate(chosen(anchors, valid)):
            assert row == sorted(set(row))
            assert set(row) <= set(slow_candidates(batch)[n])
            documents = batch.document_ids[n][row].tolist()
            possible = batch.document_ids[n][slow_candidates(batch)[n]].tolist()
            assert all(documents.count(d) == min(2, possible.count(d)) for d in set(possible))


def test_draws_are_uniform_without_replacement(make_batch):
    batch = make_batch([["uaaaaaaaaa", "aaaaua"]])  # 8 candidates, then 3
    generator, hits, rounds = torch.Generator().manual_seed(0), torch.zeros(16), 4000
    pairs = torch.zeros(16, 16)
    for _ in range(rounds):
        anchors, valid = sample_anchors(batch, 2, generator=generator)
        row = anchors[0][valid[0]]
        hits[row] += 1
        pairs[row[0], row[1]] += 1
    candidates = anchor_candidates(batch, 1)[0]
    first, second = candidates.clone(), candidates.clone()
    first[10:], second[:10] = False, False
    assert hits[~candidates].sum() == 0
    for group in (first, second):
        size = int(group.sum())
        expected = 2 / size
        sigma = (expected * (1 - expected) / rounds) ** 0.5
        assert ((hits[group] / rounds - expected).abs() < 4.5 * sigma).all()
    within = pairs[first][:, first]
    seen = within[torch.ones_like(within).triu(1).bool()] / rounds  # each of the 28 pairs alike
    assert ((seen - 1 / 28).abs() < 4.5 * (1 / 28 / rounds) ** 0.5).all()


def test_sampling_changes_with_each_call_and_repeats_with_the_seed(make_batch):
    batch = make_batch([["a" * 60]])
    generator = torch.Generator().manual_seed(3)
    one, two = (sample_anchors(batch, 8, generator=generator)[0] for _ in range(2))
    again = sample_anchors(batch, 8, generator=torch.Generator().manual_seed(3))[0]
    assert not torch.equal(one, two)
    assert torch.equal(one, again)


def test_without_candidates_everything_is_filler(make_batch):
    batch = make_batch([["uuuu"], ["uua"]])
    for anchors, valid in (sample_anchors(batch, 4, generator=None), all_anchors(batch, 4)):
        assert anchors.shape == valid.shape == (2, 1)
        assert not valid.any()


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 100])
def test_all_anchors_are_evenly_spread(make_batch, limit):
    batch = make_batch([["u" + "a" * 14, "aaaa"], ["aaa"]])
    anchors, valid = all_anchors(batch, limit)
    for n, d, candidates in [(0, 0, list(range(1, 14))), (0, 1, [15, 16, 17]), (1, 0, [0, 1])]:
        row = [p for p in anchors[n][valid[n]].tolist() if batch.document_ids[n, p] == d]
        assert len(row) == min(limit, len(candidates))
        assert row[0] == candidates[0]
        gaps = [b - a for a, b in itertools.pairwise(row)]
        assert not gaps or max(gaps) - min(gaps) <= 1
    assert torch.equal(anchors, all_anchors(batch, limit)[0])


@pytest.mark.parametrize("call", [sample_anchors, all_anchors])
def test_bad_counts_are_refused(batch, call):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        call(batch, 0, **({"generator": None} if call is sample_anchors else {}))


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("budget", [1, 5, 9])
def test_a_budget_bounds_the_batch(batch, budget):
    every = {(n, p) for n, row in enumerate(slow_candidates(batch)) for p in row}
    for seed in range(20):
        anchors, valid = sample_anchors(batch, 100, generator=generator(seed), budget=budget)
        found = {(n, p) for n, row in enumerate(chosen(anchors, valid)) for p in row}
        assert len(found) == min(budget, len(every)) == int(valid.sum())
        assert found <= every


def test_a_budget_is_spent_uniformly_over_the_batch_and_respects_the_count_per_document(batch):
    every = [(n, p) for n, row in enumerate(slow_candidates(batch)) for p in row]
    times = dict.fromkeys(every, 0)
    for seed in range(600):
        anchors, valid = sample_anchors(batch, 100, generator=generator(seed), budget=4)
        for n, row in enumerate(chosen(anchors, valid)):
            for p in row:
                times[n, p] += 1
    expected = 600 * 4 / len(every)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in times.values())
    anchors, valid = sample_anchors(batch, 1, generator=generator(0), budget=100)
    plain, plain_valid = sample_anchors(batch, 1, generator=generator(0))
    assert torch.equal(anchors, plain)
    assert torch.equal(valid, plain_valid)  # a budget that is not reached changes nothing
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        sample_anchors(batch, 1, generator=None, budget=0)
