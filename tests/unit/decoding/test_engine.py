"""Greedy decoding with drafts: outputs, accept counts, stops, limits, refills."""

from __future__ import annotations

import gc
import sys

import pytest
import torch
from decoding_stubs import StubDrafter, StubHead, StubTarget, step
from test_autoregressive import make_requests
from torch import Tensor

from specdraft.correctors import NoCorrector
from specdraft.decoding import Request, autoregressive_decode, speculative_decode


def decode(target, drafter, requests, head=None, **kwargs):
    head = head or target.head
    return speculative_decode(
        target, drafter, NoCorrector(target.spec), head, requests, mask_token_id=target.spec.mask_token_id, **kwargs
    )


def expected(target: StubTarget, drafter: StubDrafter, drafts: int, request: Request):
    """Plain loop over one request: tokens, accepted and drafted of each round."""
    prompt = list(request.prompt_ids)
    tokens, accepted, drafted = [int(target.logits_after(prompt).argmax())], [], []
    while len(tokens) < request.max_new_tokens and tokens[-1] not in request.stop_ids:
        state = torch.tensor(0)
        for position, token in enumerate(prompt + tokens):
            state = step(state, torch.tensor(token), torch.tensor(position), target.states)
        room = request.max_new_tokens - len(tokens)
        length = 0
        while length < drafts and bool(drafter.right(state, length)):
            length += 1
        fresh = target.greedy(prompt + tokens, min(length + 1, room), request.stop_ids)
        tokens += fresh
        accepted.append(len(fresh) - 1)
        stopped_inside = fresh[-1] in request.stop_ids and len(fresh) <= min(length, room - 1)
        drafted.append(len(fresh) - 1 if stopped_inside else min(drafts, room - 1))
    return tokens, accepted, drafted


@pytest.mark.parametrize("sample_from_anchor", [False, True])
@pytest.mark.parametrize("modulus", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_any_drafter_gives_the_autoregressive_output(concurrency, modulus, sample_from_anchor):
    target = StubTarget()
    drafter = StubDrafter(target, 5, sample_from_anchor, modulus)
    requests = make_requests(30, seed=modulus)
    plain = autoregressive_decode(target, requests, concurrency=concurrency)
    done = decode(target, drafter, requests, concurrency=concurrency)
    drafts = 5 if sample_from_anchor else 4
    assert [r.tokens for r in done.results] == [r.tokens for r in plain.results]
    for request, result in zip(requests, done.results, strict=True):
        tokens, accepted, drafted = expected(target, drafter, drafts, request)
        assert (result.tokens, result.accepted, result.drafted) == (tokens, accepted, drafted)
        assert len(result.tokens) == 1 + sum(result.accepted) + result.rounds
    assert done.mat == pytest.approx((done.emitted - 30) / done.rounds)
    assert done.mat_drafts == pytest.approx(done.mat - 1)
    assert done.steps <= done.rounds <= done.steps * concurrency
    assert done.timing.total == pytest.approx(done.decode_seconds, rel=0.01)
    assert min(done.timing.draft, done.timing.correct, done.timing.verify, done.prefill_seconds) > 0
    if modulus == 1:
        assert done.mat == 1.0


def test_means_are_pooled():
    target = StubTarget()
    done = decode(target, StubDrafter(target, 5), [Request([1], 11), Request([2], 2), Request([3], 1)])
    # 10 tokens behind the first in rounds of 4 drafts: 5 + 5; one more token in a round of its own; no round at all
    assert [r.accepted for r in done.results] == [[4, 4], [0], []]
    assert [r.drafted for r in done.results] == [[4, 4], [0], []]
    assert (done.mat, done.mat_drafts, done.mat_prompt_mean) == (pytest.approx(11 / 3), pytest.approx(8 / 3), 3.0)


def test_stop_inside_the_accepted_prefix():
    target = StubTarget()
    text = target.greedy([4, 2], 8)
    stop = next(token for i, token in enumerate(text) if i >= 2 and token not in text[:i])
    place = text.index(stop)
    assert 2 <= place <= 5
    result = decode(target, StubDrafter(target, 7), [Request([4, 2], 30, (stop,))]).results[0]
    assert result.tokens == text[: place + 1]
    assert result.accepted == result.drafted == [place - 1]


def test_block_size_below_the_trained_one():
    target = StubTarget()
    requests = make_requests(12)
    plain = autoregressive_decode(target, requests, concurrency=4)
    for sample_from_anchor, block_size in [(False, 2), (False, 5), (True, 1), (True, 4)]:
        drafter = StubDrafter(target, 8, sample_from_anchor, modulus=5)
        done = decode(target, drafter, requests, concurrency=4, block_size=block_size)
        assert set(drafter.blocks) == {block_size}
        assert [r.tokens for r in done.results] == [r.tokens for r in plain.results]
        assert max(max(r.drafted, default=0) for r in done.results) == block_size - (0 if sample_from_anchor else 1)


def test_reduced_draft_vocabulary():
    target = StubTarget()
    head = StubHead(target.head.weight, torch.tensor([0, 2, 3, 5, 8, 10]))
    requests = make_requests(10, stops=(1,))
    done = decode(target, StubDrafter(target, 5), requests, head, concurrency=4)
    assert [r.tokens for r in done.results] == [
        target.greedy(r.prompt_ids, r.max_new_tokens, r.stop_ids) for r in requests
    ]
    assert 1.0 < done.mat < decode(target, StubDrafter(target, 5), requests, concurrency=4).mat


@pytest.mark.parametrize("seed", range(6))
def test_stress(seed, monkeypatch):
    """Random patterns, stops, limits, concurrency and tiny prefill groups: no row lost, duplicated or crossed."""
    g = torch.Generator().manual_seed(seed)
    monkeypatch.setattr("specdraft.decoding.schedule.PREFILL_TOKENS", 10)
    target = StubTarget(seed=seed)
    drafter = StubDrafter(target, 2 + seed, bool(seed % 2), int(torch.randint(0, 6, (), generator=g)))
    requests = make_requests(60, seed=100 + seed, stops=tuple(range(1 + seed % 4)))
    seen: list[int] = []
    done = decode(target, drafter, requests, concurrency=2 + 3 * seed, on_finish=lambda index, _: seen.append(index))
    assert sorted(seen) == list(range(60))
    for request, result in zip(requests, done.results, strict=True):
        assert result.tokens == target.greedy(request.prompt_ids, request.max_new_tokens, request.stop_ids)
        assert result.prompt_tokens == len(request.prompt_ids)


@pytest.mark.slow
def test_ten_thousand_rounds_keep_memory_flat():
    """Random patterns, stops, limits and refills: no row is lost, duplicated or crossed, and nothing piles up."""
    target, seen, rounds, peaks = StubTarget(positions=1 << 20), [], 0, []
    for seed in range(60):
        drafter = StubDrafter(target, 2 + seed % 6, bool(seed % 2), seed % 5)
        requests = make_requests(150, seed=1000 + seed, stops=tuple(range(seed % 4)))
        seen.clear()
        done = decode(
            target, drafter, requests, concurrency=1 + seed % 9, on_finish=lambda index, _: seen.append(index)
        )
        assert sorted(seen) == list(range(150))
        if seed % 10 == 0:
            assert [r.tokens for r in done.results] == [
                target.greedy(r.prompt_ids, r.max_new_tokens, r.stop_ids) for r in requests
            ]
        rounds += done.steps
        gc.collect()
        peaks.append(sum(1 for item in gc.get_objects() if issubclass(type(item), Tensor)))
    assert rounds > 10_000
    assert peaks[-1] <= peaks[1] + 5


def test_caches_agree_with_the_anchor():
    target = StubTarget()
    caches = []

    class Watching(StubDrafter):
        def draft(self, embeds: Tensor, cache) -> Tensor:
            assert cache.lengths.equal(caches[0].lengths)
            assert cache.extent == caches[0].extent == int(cache.lengths.max())
            return super().draft(embeds, cache)

    new_cache = target.new_cache
    target.new_cache = lambda rows, capacity: caches.append(new_cache(rows, capacity)) or caches[-1]
    decode(target, Watching(target, 5, modulus=3), make_requests(20), concurrency=6)


def test_one_synchronisation_per_round(monkeypatch):
    target = StubTarget()
    calls = 0

    def counting(name):
        original = getattr(Tensor, name)

        def call(self, *args, **kwargs):
            nonlocal calls
            calls += str(sys._getframe(1).f_globals["__name__"]).startswith("specdraft")
            return original(self, *args, **kwargs)

        return call

    for name in ("tolist", "item", "cpu", "__int__", "__bool__", "__float__", "__index__", "nonzero", "numpy"):
        monkeypatch.setattr(Tensor, name, counting(name))
    counts = []
    for limit in (50, 150):
        calls = 0
        done = decode(target, StubDrafter(target, 5, modulus=3), [Request([1], limit)] * 4, concurrency=4)
        counts.append((done.steps, calls))
    (few, before), (many, after) = counts
    assert many > few
    assert after - before == many - few


def test_empty_list():
    target = StubTarget()
    assert decode(target, StubDrafter(target, 4), []).results == []


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"block_size": 1}, r"block_size 1 must be in 2\.\.4"),
        ({"block_size": 5}, r"block_size 5 must be in 2\.\.4"),
        ({"rule": "tree"}, "'tree' is unknown"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_refuses(kwargs, match):
    target = StubTarget()
    with pytest.raises(ValueError, match=match):
        decode(target, StubDrafter(target, 4), [Request([1], 2)], **kwargs)


def test_refuses_mask_outside_the_vocabulary():
    target = StubTarget()
    with pytest.raises(ValueError, match="mask_token_id 11"):
        speculative_decode(
            target, StubDrafter(target, 4), NoCorrector(target.spec), target.head, [Request([1], 2)], mask_token_id=11
        )
