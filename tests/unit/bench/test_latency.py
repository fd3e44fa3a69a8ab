from __future__ import annotations

import math
import random

import numpy as np
import pytest

from specdraft.bench.latency import (
    first_token_seconds,
    inter_token_seconds,
    percentiles,
    round_gaps,
    stream_tokens_per_second,
)
from specdraft.decoding import RequestResult


def slow_percentile(values, point):
    """Smallest v with the interpolated empirical distribution at point, by walking the sorted sample."""
    ordered = sorted(values)
    position = point / 100 * (len(ordered) - 1)
    for i in range(len(ordered) - 1):
        if i <= position <= i + 1:
            return ordered[i] * (i + 1 - position) + ordered[i + 1] * (position - i)
    return ordered[0]


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_percentiles_equal_a_slow_loop_and_numpy(count):
    values = [random.Random(count + i).random() for i in range(count)]
    points = (0, 12.5, 50, 90, 99, 100)
    found = percentiles(values, points)
    for point in points:
        assert found[f"p{point:g}"] == pytest.approx(slow_percentile(values, point))
        assert found[f"p{point:g}"] == pytest.approx(np.percentile(values, point))
    assert found["mean"] == pytest.approx(math.fsum(values) / count)


def test_an_empty_sample_has_no_percentiles():
    assert percentiles([]) == {"mean": None, "p50": None, "p90": None, "p99": None}


def test_gaps_of_a_request():
    # 1 token, then a round of 3 after 0.3 s, then a round of 1 after 0.2 s
    result = RequestResult([1, 2, 3, 4, 5], [2, 0], [3, 1], 0.6, 4, arrivals=[0.1, 0.4, 0.6])
    single = RequestResult([1], [], [], 0.2, 4, arrivals=[0.2])
    both = [result, single]
    assert first_token_seconds(both) == [0.1, 0.2]
    assert round_gaps(both) == pytest.approx([0.3, 0.2])
    assert inter_token_seconds(both) == pytest.approx([0.1, 0.1, 0.1, 0.2])
    assert stream_tokens_per_second(both) == pytest.approx(4 / 0.5)
    assert stream_tokens_per_second([single]) is None
    result.waited = 0.1  # while others were prefilled
    assert stream_tokens_per_second(both) == pytest.approx(4 / 0.4)
