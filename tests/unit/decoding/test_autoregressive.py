from __future__ import annotations

import time

import pytest
import torch
from decoding_stubs import StubTarget

from specdraft.decoding import Request, SamplingParams, autoregressive_decode


def make_requests(count: int, seed: int = 0, vocab: int = 11, stops: tuple[int, ...] = (3,)) -> list[Request]:
    g = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=g))

    return [
        Request([draw(0, vocab) for _ in range(draw(1, 9))], draw(1, 25), stops if draw(0, 2) else ())
        for _ in range(count)
    ]


@pytest.mark.parametrize("concurrency", [1, 3, 8, 40])
def test_equals_plain_loop(concurrency):
    target = StubTarget()
    requests = make_requests(21)
    seen = []
    done = autoregressive_decode(
        target, requests, concurrency=concurrency, on_finish=lambda index, result: seen.append((index, result))
    )
    for request, result in zip(requests, done.results, strict=True):
        assert result.tokens == target.greedy(request.prompt_ids, request.max_new_tokens, request.stop_ids)
        assert len(result.tokens) == 1 + sum(result.accepted) + result.rounds
        assert result.seconds > 0
    assert sorted(index for index, _ in seen) == list(range(21))
    assert all(result is done.results[index] for index, result in seen)
    assert done.steps <= done.rounds <= done.steps * concurrency
    assert done.mat == 1.0
    assert done.tokens_per_second == pytest.approx((done.emitted - 21) / done.decode_seconds)


def test_prefills_of_others_are_no_decoding_time():
    """One request decodes on while the rows beside it are refilled; a step is fast here, a prefill slow."""

    class SlowPrefill(StubTarget):
        def forward(self, input_ids, cache, *, features=True):
            time.sleep(0.02 if input_ids.shape[1] > 1 else 0)
            return super().forward(input_ids, cache, features=features)

    requests = [Request([1, 2], 12), *(Request([3, 4], 3) for _ in range(4))]
    done = autoregressive_decode(SlowPrefill(), requests, concurrency=2)
    long, last = done.results[0], done.results[-1]
    assert long.waited == pytest.approx(0.06, rel=0.5)  # the refills behind the first prefill, which holds two
    assert long.decoding_seconds < 0.02 < long.arrivals[-1] - long.arrivals[0]
    assert last.waited == 0
    assert sum(r.decoding_seconds for r in done.results) <= 2 * done.decode_seconds


def test_head_reads_last_positions_only():
    target = StubTarget()
    autoregressive_decode(target, [Request([1] * 50, 5), Request(torch.tensor([2]), 5)], concurrency=2)
    assert target.head.rows_seen == 2 + 2 * 4


def test_single_token_requests_need_no_round():
    target = StubTarget()
    done = autoregressive_decode(target, [Request([1, 2], 1) for _ in range(5)], concurrency=2)
    assert [len(result.tokens) for result in done.results] == [1] * 5
    assert (done.steps, done.rounds, done.mat, done.mat_prompt_mean) == (0, 0, 0.0, 0.0)


def test_empty_list():
    assert autoregressive_decode(StubTarget(), []).results == []


def test_first_tokens_follow_the_law():
    target = StubTarget(vocab=3, states=17)
    params = SamplingParams(temperature=1.3)
    count = 4000
    done = autoregressive_decode(
        target, [Request([1], 2)] * count, params=params, concurrency=500, generator=torch.Generator().manual_seed(1)
    )
    first = torch.softmax(target.logits_after([1]) / 1.3, -1)
    expected = torch.stack(
        [first[a] * torch.softmax(target.logits_after([1, a]) / 1.3, -1) for a in range(3)]
    ).flatten()
    observed = torch.bincount(torch.tensor([3 * a + b for a, b in (r.tokens for r in done.results)]), minlength=9)
    chi = float(((observed - count * expected) ** 2 / (count * expected)).sum())
    assert chi < 26.1  # 0.1% point of chi-square with 8 degrees of freedom


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        (Request([], 3), "empty prompt"),
        (Request([1], 0), "max_new_tokens"),
        (Request([1] * 10, 7), "exceeds the 16 positions"),
        (Request([1, 11], 3), "prompt id 11"),
        (Request([-1, 1], 3), "prompt id -1"),
    ],
)
def test_refuses(request_, match):
    target = StubTarget(positions=16)
    with pytest.raises(ValueError, match=f"request 1.*{match}"):
        autoregressive_decode(target, [Request([1], 2), request_])


def test_refuses_concurrency():
    with pytest.raises(ValueError, match="concurrency"):
        autoregressive_decode(StubTarget(), [Request([1], 2)], concurrency=0)
