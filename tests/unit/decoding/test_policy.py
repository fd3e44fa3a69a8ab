"""Policies: what they choose, and that no choice changes the output."""

from __future__ import annotations

import random

import pytest
import torch
from decoding_stubs import StubDrafter, StubTarget
from test_autoregressive import make_requests
from test_engine import decode
from test_engine_sampling import Conditioned, RandomDrafter, p_value
from test_graphs import replayed  # noqa: F401  (fixture)

from specdraft.decoding import (
    BlockPolicy,
    FixedBlock,
    Request,
    RunningSurvival,
    SamplingParams,
    StaticTable,
    TunedTables,
    autoregressive_decode,
    speculative_decode,
)

SIZES = (2, 3, 5, 8)


def geometric(rate: float, drafts: int) -> list[float]:
    return [rate**k for k in range(1, drafts + 1)]


def tables(nested: bool = True, rate: float = 0.7, slope: float = 0.1) -> TunedTables:
    """A round takes 1 s and ``slope`` more per slot and row."""
    latency = {size: {rows: 1 + slope * size * rows for rows in (1, 4)} for size in SIZES}
    survival = {"all": {size: geometric(rate, size - 1) for size in SIZES}}
    return TunedTables(0.0, survival, latency, {"all": {1: 8, 4: 3}, "code": {1: 5, 4: 2}}, nested)


class Restless(BlockPolicy):
    """A choice that depends on everything it is told, to provoke whatever depends on the order of block sizes."""

    def __init__(self, sizes: tuple[int, ...] = SIZES) -> None:
        self.sizes = sizes
        self.told = 0

    def choose(self, live, rows):
        return self.sizes[(self.told + len(live)) % len(self.sizes)]

    def observe(self, workload, size, drafted, accepted):
        assert 0 <= accepted <= drafted < size
        self.told += 3 * accepted + drafted + 1


POLICIES = {
    "fixed": lambda: FixedBlock(4),
    "static": lambda: StaticTable.from_tables(tables()),
    "running": lambda: RunningSurvival.from_tables(tables()),
    "running, not nested": lambda: RunningSurvival(tables(nested=False), window=4, prior=1),
    "restless": Restless,
}


def with_workloads(requests: list[Request]) -> list[Request]:
    for i, request in enumerate(requests):
        request.workload = ("code", "chat", "")[i % 3]
    return requests


@pytest.mark.parametrize("modulus", [0, 1, 3])
@pytest.mark.parametrize("concurrency", [1, 5])
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_output_is_the_autoregressive_one(policy, concurrency, modulus):
    target = StubTarget()
    drafter = StubDrafter(target, 8, modulus=modulus)
    requests = with_workloads(make_requests(20, seed=modulus))
    plain = autoregressive_decode(target, requests, concurrency=concurrency)
    chooser = POLICIES[policy]()
    done = decode(target, drafter, requests, concurrency=concurrency, policy=chooser)
    assert [r.tokens for r in done.results] == [r.tokens for r in plain.results]
    assert [entry.block_size for entry in done.log] == drafter.blocks
    assert set(drafter.blocks) <= set(chooser.sizes)
    if policy == "restless":
        assert len(set(drafter.blocks)) > 1
    assert sum(entry.tokens for entry in done.log) == done.emitted - len(requests)
    assert sum(entry.rows for entry in done.log) == done.rounds
    assert sum(entry.seconds for entry in done.log) <= done.decode_seconds
    assert {entry.block_size for entry in plain.log} == {0}
    assert sum(entry.tokens for entry in plain.log) == plain.emitted - len(requests)


def test_graphs_of_several_block_sizes(replayed):  # noqa: F811
    target = StubTarget()
    drafter = StubDrafter(target, 8, modulus=3)
    requests = make_requests(20)
    expected = [target.greedy(r.prompt_ids, r.max_new_tokens, r.stop_ids) for r in requests]
    done = decode(target, drafter, requests, concurrency=4, policy=Restless())
    assert [r.tokens for r in done.results] == expected
    assert len({entry.block_size for entry in done.log}) > 1
    assert len(replayed) == 4 * done.steps


@pytest.mark.parametrize("rule", ["token", "block"])
def test_sampled_output_follows_the_law(rule):
    target = StubTarget(vocab=3, states=31)
    params = SamplingParams(1.0)
    done = speculative_decode(
        *(target, RandomDrafter(target, 4), Conditioned(3), target.head, [Request([1, 0], 5)] * 4000),
        mask_token_id=2,
        params=params,
        concurrency=500,
        policy=Restless((2, 3, 4)),
        rule=rule,
        generator=torch.Generator().manual_seed(3),
    )
    assert len({entry.block_size for entry in done.log}) == 3
    assert p_value(target, done, params) > 1e-3


def test_engine_refuses():
    target = StubTarget()
    drafter, requests = StubDrafter(target, 5), [Request([1], 4)]
    with pytest.raises(ValueError, match=r"block_size 8 must be in 2\.\.5"):
        decode(target, drafter, requests, policy=Restless())
    with pytest.raises(ValueError, match="block_size 4 and a policy"):
        decode(target, drafter, requests, policy=FixedBlock(4), block_size=4)
    liar = FixedBlock(4)
    liar.choose = lambda live, rows: 3  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"chose block size 3, which is not among its sizes \(4,\)"):
        decode(target, drafter, requests, policy=liar)


def test_static_table_looks_up():
    policy = StaticTable({"all": {1: 8, 4: 5, 16: 2}, "code": {1: 3, 4: 4}})
    assert policy.sizes == (2, 3, 4, 5, 8)
    assert [policy.choose(["chat"] * n, n) for n in (1, 2, 3, 4, 7, 9, 16, 99)] == [8, 8, 5, 5, 5, 2, 2, 2]
    assert [policy.choose(["code"] * n, n) for n in (1, 4, 99)] == [3, 4, 4]
    assert policy.choose(["code", "chat", "code", "code"], 4) == 5  # a mixed batch is decoded like all
    with pytest.raises(ValueError, match="must hold 'all'"):
        StaticTable({"code": {1: 3}})


def test_tables_interpolate_and_refuse():
    table = tables()
    assert table.seconds(5, 4) == pytest.approx(3.0)
    assert table.seconds(5, 2) == pytest.approx(1.5 + 1.5 / 3)
    assert (table.seconds(5, 99), table.seconds(5, 1)) == (table.seconds(5, 4), 1.5)
    assert table.mat("unknown", 3) == pytest.approx(1 + 0.7 + 0.49)
    assert table.tokens_per_second("all", 3, 4) == pytest.approx(4 * 2.19 / 2.2)
    with pytest.raises(ValueError, match="survival of 'all' lacks block size 8"):
        TunedTables(0.0, {"all": {2: [0.5]}}, {2: {1: 1.0}, 8: {1: 1.0}}, {"all": {1: 2}})
    with pytest.raises(ValueError, match="name block size 4"):
        TunedTables(0.0, {"all": {2: [0.5]}}, {2: {1: 1.0}}, {"all": {1: 4}})
    with pytest.raises(ValueError, match="no workload 'all'"):
        TunedTables(0.0, {"code": {2: [0.5]}}, {2: {1: 1.0}}, {"all": {1: 2}})


def brute(rate: float, rows: int, slope: float = 0.1) -> int:
    """Block size with most tokens per second if every draft is accepted with the same chance."""
    return max(SIZES, key=lambda size: (1 + sum(geometric(rate, size - 1))) / (1 + slope * size * rows))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("rate", [0.05, 0.4, 0.7, 0.95])
def test_running_survival_finds_the_best_block(rate, rows):
    policy = RunningSurvival(tables(), window=2000, prior=8)
    assert policy.choose([""] * rows, rows) == brute(0.7, rows)  # the tuned curve before anything is seen
    rng = random.Random(1)
    for _ in range(1500):
        size = policy.choose([""] * rows, rows)
        accepted = 0
        while accepted < size - 1 and rng.random() < rate:
            accepted += 1
        policy.observe("", size, size - 1, accepted)
    assert policy.choose([""] * rows, rows) == brute(rate, rows)
    assert policy.survival("", 8)[0] == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize("nested", [True, False])
def test_running_survival_of_the_other_slot_convention_goes_on(nested):
    """Tuned for B - 1 drafts, used where B are drafted: the last of them is accepted too."""
    policy = RunningSurvival(tables(nested), window=10, prior=2)
    for size in SIZES:
        policy.observe("", size, size, size)
    assert policy.choose([""], 1) == max(SIZES)


def test_running_survival_is_the_product_limit_estimate():
    policy = RunningSurvival(tables(), window=10, prior=2)
    rounds = [(8, 7, 3), (2, 1, 1), (5, 4, 0), (8, 2, 2), (3, 2, 1)]
    for size, drafted, accepted in rounds:
        policy.observe("chat", size, drafted, accepted)
    seen, yes = [0.0] * 7, [0.0] * 7
    for age, (_, drafted, accepted) in enumerate(reversed(rounds)):
        for k in range(7):
            if drafted > k and accepted >= k:
                seen[k] += 0.9**age
                yes[k] += 0.9**age * (accepted > k)
    ratio = (sum(seen) - sum(yes) + 2) / (0.3 * sum(seen) + 2)
    expected, product = [], 1.0
    for k in range(7):
        product *= (yes[k] + 2 * (1 - 0.3 * ratio)) / (seen[k] + 2)
        expected.append(product)
    assert policy.survival("chat", 8) == pytest.approx(expected)
    assert policy.survival("chat", 3) == pytest.approx(expected[:2])
    assert policy.survival("other", 8) == pytest.approx(geometric(0.7, 7))


def test_positions_out_of_reach_follow_the_rest():
    survival = {"all": {size: [0.8, 0.4, 0.0, 0.0][: size - 1] for size in (3, 5)}}
    policy = RunningSurvival(TunedTables(0.0, survival, {3: {1: 1.0}, 5: {1: 1.1}}, {"all": {1: 3}}), prior=1)
    for _ in range(200):
        policy.observe("", 3, 2, 2)
    assert policy.survival("", 5)[1] > 0.97
    assert policy.survival("", 5)[3] > 0.9  # tuned as hopeless, but everything seen since went well
    for _ in range(500):
        policy.observe("", 3, 2, 0)
    assert policy.survival("", 5)[0] < 0.15


def test_running_survival_keeps_block_sizes_apart_and_forgets():
    policy = RunningSurvival(tables(nested=False), window=5, prior=1)
    for _ in range(50):
        policy.observe("", 3, 2, 0)
    assert policy.survival("", 3)[0] < 0.2
    assert policy.survival("", 8) == pytest.approx(geometric(0.7, 7))
    for _ in range(100):  # what is no longer tried drifts back to the tuned curve
        policy.observe("", 8, 7, 7)
    assert policy.survival("", 3) == pytest.approx(geometric(0.7, 2), abs=1e-3)
    with pytest.raises(ValueError, match="got 0 and 32"):
        RunningSurvival(tables(), window=0)


def test_running_survival_weighs_the_requests_of_a_batch():
    policy = RunningSurvival(tables(slope=0.05), window=500, prior=4)
    for _ in range(400):
        policy.observe("easy", 8, 7, 7)
        policy.observe("hard", 8, 7, 0)
    assert policy.choose(["easy"] * 4, 4) == 8
    assert policy.choose(["hard"] * 4, 4) == 2
    assert policy.choose(["easy", "hard", "hard", "hard"], 4) <= policy.choose(["easy", "easy", "easy", "hard"], 4)
