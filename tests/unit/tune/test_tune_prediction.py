"""Choices on simulated machines."""

from __future__ import annotations

import math

import pytest

from specdraft.decoding import RunningSurvival, StaticTable, TunedTables
from specdraft.tune import assess, best_blocks, best_fixed, predicted_grid, unimodal_best
from specdraft.tune.prediction import geometric_mean
from specdraft.tune.search import has_one_peak

SIZES = (2, 4, 8, 16)
LEVELS = (1, 4, 16, 64)


def gpu_seconds(size: int, rows: int) -> float:
    """Memory-bound up to 256 token positions, then proportional to them."""
    return 0.010 * max(1.0, size * rows / 256)


def curve(rate: float, drafts: int) -> list[float]:
    return [rate**k for k in range(1, drafts + 1)]


SURVIVAL = {
    name: {size: curve(rate, size - 1) for size in SIZES} for name, rate in (("all", 0.7), ("code", 0.9), ("chat", 0.4))
}
LATENCY = {size: {rows: gpu_seconds(size, rows) for rows in LEVELS} for size in SIZES}


def test_prediction_is_mat_over_latency():
    grid = predicted_grid(SURVIVAL, LATENCY)
    assert set(grid) == {(name, rows) for name in SURVIVAL for rows in LEVELS}
    assert grid["code", 4][4] == pytest.approx(4 * (1 + 0.9 + 0.81 + 0.729) / 0.010)
    assert grid["chat", 64][8] == pytest.approx(64 * (1 + sum(curve(0.4, 7))) / 0.020)


def test_flat_then_rising_latency():
    """Below the knee more slots are free, so the largest block wins; beyond it a slot must pay for itself."""
    choices = best_blocks(predicted_grid(SURVIVAL, LATENCY))
    for workload in SURVIVAL:
        assert [choices[workload][rows] for rows in (1, 4, 16)] == [16, 16, 16]  # 16 * 16 slots are the knee
    # 64 rows: 4 slots are the knee. 8 slots cost twice as much and 16 four times
    assert choices["chat"][64] == 4
    assert choices["all"][64] == 4
    mat = {size: 1 + sum(curve(0.9, size - 1)) for size in SIZES}
    assert mat[8] / 2 < mat[4]
    assert choices["code"][64] == 4


def test_each_workload_has_a_block_of_its_own_on_an_affine_machine():
    latency = {size: {1: 0.02 + 0.001 * size, 8: 0.02 + 0.004 * size} for size in SIZES}
    choices = best_blocks(predicted_grid(SURVIVAL, latency))
    for workload, rate in (("all", 0.7), ("code", 0.9), ("chat", 0.4)):
        for rows, slope in ((1, 0.001), (8, 0.004)):
            by_hand = max(SIZES, key=lambda b: (1 - rate**b) / (1 - rate) / (0.02 + slope * b))
            assert choices[workload][rows] == by_hand
    assert choices["code"][1] == 16 > choices["chat"][1] > choices["chat"][8] == 2


def test_equals_go_to_the_smaller_block():
    grid = {("all", 1): {4: 10.0, 2: 10.0, 8: 9.0}}
    assert best_blocks(grid) == {"all": {1: 2}}
    assert best_fixed(grid, list(grid)) == 2


def test_policies_follow_the_simulated_machine():
    choices = best_blocks(predicted_grid(SURVIVAL, LATENCY))
    tables = TunedTables(0.0, SURVIVAL, LATENCY, choices)
    for policy in (StaticTable.from_tables(tables), RunningSurvival.from_tables(tables)):
        for workload in SURVIVAL:
            for rows in LEVELS:
                assert policy.choose([workload] * rows, rows) == choices[workload][rows]


def test_assessment():
    predicted = {("a", 1): {2: 10.0, 4: 12.0}, ("b", 1): {2: 20.0, 4: 16.0}, ("all", 1): {2: 15.0, 4: 14.0}}
    measured = {("a", 1): {2: 10.0, 4: 11.0}, ("b", 1): {2: 20.0, 4: 21.0}, ("all", 1): {2: 15.0, 4: 1.0}}
    a, b, both = assess(predicted, measured, best_blocks(predicted))
    assert (a.chosen, a.best, a.fixed) == (4, 4, 4)  # all does not vote for the best fixed block
    assert (a.error, a.gain, a.regret) == (pytest.approx(12 / 11 - 1), 0, 0)
    assert (b.chosen, b.best, b.fixed) == (2, 4, 4)
    assert b.gain == pytest.approx(20 / 21 - 1)
    assert b.regret == pytest.approx(1 / 21)
    assert (both.chosen, both.gain) == (2, 14.0)


def test_a_machine_that_slows_down_is_told_from_a_wrong_prediction():
    predicted, measured = {("all", 1): {2: 20.0, 4: 12.0}}, {("all", 1): {2: 10.0, 4: 7.0}}
    (one,) = assess(predicted, measured, best_blocks(predicted), {("all", 1): 1.9})
    assert one.error == pytest.approx(1.0)
    assert one.error_at_equal_speed == pytest.approx(20 / 1.9 / 10 - 1)
    (same,) = assess(predicted, measured, best_blocks(predicted))
    assert same.error == same.error_at_equal_speed


def test_geometric_mean():
    assert geometric_mean([1.0, 100.0]) == pytest.approx(10)
    assert geometric_mean([0.0, 3.0]) == 0
    with pytest.raises(ValueError, match="no values"):
        geometric_mean([])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 33])
def test_unimodal_search(count):
    for peak in range(count):
        asked = []

        def value(i, peak=peak, asked=asked):
            asked.append(i)
            return -abs(i - peak) + 0.1 * (i > peak)

        seen = unimodal_best(count, value)
        assert max(seen, key=seen.__getitem__) == peak
        assert len(asked) == len(set(asked)) == len(seen)
        assert len(seen) <= 2 * math.ceil(math.log2(count)) + 1
    with pytest.raises(ValueError, match="at least one checkpoint"):
        unimodal_best(0, lambda i: 0.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1], True), ([1, 2, 3], True), ([3, 2], True), ([1, 3, 2, 2], True), ([1, 3, 2, 3], False), ([2, 1, 2], False)],
)
def test_one_peak(values, expected):
    assert has_one_peak(values) == expected


def test_depths_of_a_drafter():
    """MAT concave in the depth, latency affine: one peak, as for the published DFlash depths."""
    rates = [(1 + 2 * (1 - 0.5**depth)) / (0.02 + 0.002 * depth) for depth in range(1, 13)]
    seen = unimodal_best(len(rates), rates.__getitem__)
    assert max(seen, key=seen.__getitem__) == max(range(len(rates)), key=rates.__getitem__)
    assert len(seen) < len(rates)
