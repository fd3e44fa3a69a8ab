"""From decoded rounds to curves and rates."""

from __future__ import annotations

import pytest

from specdraft.bench.shapes import fullest, round_shapes
from specdraft.decoding import DecodeResult, Request, RequestResult, RoundLog
from specdraft.tune.candidates import Candidate, choose_candidate
from specdraft.tune.measuring import Throughput, by_workload, pooled, survival_curve, taken, throughput


def result(*accepted: int) -> RequestResult:
    return RequestResult([0] * (1 + len(accepted) + sum(accepted)), list(accepted), [3] * len(accepted))


def test_survival_sums_to_mat():
    results = [result(3, 0, 1), result(2), result()]
    curve = survival_curve(results, 3)
    assert curve == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert 1 + sum(curve) == pytest.approx(DecodeResult(results).mat)
    assert survival_curve([result()], 2) == [0, 0]
    groups = by_workload(results, ["b", "a", "b"])
    assert list(groups) == ["a", "b", "all"]
    assert groups["b"] == [results[0], results[2]]
    assert groups["all"] == results


def test_rounds_by_shape():
    log = [RoundLog(4, 2, 5, 0.1), RoundLog(4, 2, 3, 0.5), RoundLog(4, 2, 4, 0.2), RoundLog(4, 1, 2, 0.1)]
    log.append(RoundLog(2, 2, 3, 0.1))
    shapes = round_shapes(log)
    assert shapes[0] == {"block_size": 2, "rows": 2, "rounds": 1, "tokens": 3, "seconds": 0.1, "median_seconds": 0.1}
    assert (shapes[2]["tokens"], shapes[2]["median_seconds"]) == (12, 0.2)
    assert shapes[2]["seconds"] == pytest.approx(0.8)
    assert [shape["block_size"] for shape in fullest(shapes)] == [2, 4]
    assert fullest([]) == round_shapes([]) == []
    found = pooled({"a": fullest(shapes), "b": shapes[1:2]})
    assert {name: value.tokens_per_second for name, value in found.items()} == {
        "a": pytest.approx(15 / 0.9),
        "b": pytest.approx(20),
        "all": pytest.approx(17),
    }
    assert found["a"].mat == pytest.approx(15 / 8)
    assert found["all"].mat == pytest.approx(17 / 9)
    assert found["a"].tokens_per_second == pytest.approx(2 * found["a"].mat / found["a"].seconds)
    assert throughput([]) == Throughput(0.0, 0.0, 0.0)


def test_rows_are_filled_by_repeating():
    requests = [Request([i], 2) for i in range(3)]
    assert [r.prompt_ids for r in taken(requests, 2, 5)] == [[2], [0], [1], [2], [0]]


def test_checkpoints_are_searched_by_depth(monkeypatch):
    scores = [1.0, 3.0, 4.0, 3.5, 2.0, 1.5, 1.0, 0.5]
    monkeypatch.setattr(Candidate, "score", property(lambda self: scores[int(self.path)]))
    measured = []

    def measure(index):
        measured.append(index)
        return Candidate(str(index), index, (), ())

    found = choose_candidate(range(8), measure, every=False)
    assert found[0].path == "2"
    assert len(measured) < 8
    measured.clear()
    assert [c.path for c in choose_candidate(range(8), measure, every=True)][:3] == ["2", "3", "1"]
    assert len(measured) == 8
    measured.clear()  # equal depths have no order, so that nothing can be skipped
    assert choose_candidate([1, 1, 2, 2, 3, 3, 4, 4], measure, every=False)[0].path == "2"
    assert len(measured) == 8
