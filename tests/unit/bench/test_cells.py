from __future__ import annotations

import json

import pytest
import torch

from specdraft.bench import Cell, Job, measure, summary
from specdraft.bench.journal import Journal
from specdraft.decoding import DecodeResult, Request, RequestResult, RoundLog
from specdraft.types import RoundTiming

CPU = torch.device("cpu")


def fake_decode(calls, stop_after=None):
    """Answer request i with tokens [p, p + 1, p + 2] in one round of 2 accepted drafts."""

    def decode(requests, on_finish):
        calls.append([r.prompt_ids[0] for r in requests])
        results = []
        for place, request in enumerate(requests):
            if stop_after is not None and place == stop_after:
                raise KeyboardInterrupt
            p = request.prompt_ids[0]
            results.append(RequestResult([p, p + 1, p + 2], [1], [1], 0.3, 1, [0.1, 0.3]))
            on_finish(place, results[-1])
        log = [RoundLog(4, 2, len(requests), 1.0)] * 2
        return DecodeResult(results, 0.5, 2.0, RoundTiming(0.5, 0.25, 1.0, 0.25), steps=2, log=log)

    return decode


REQUESTS = [Request([i], 3) for i in range(5)]
CELL = Cell("run/best", 2, 0.0, 4, "best.ckpt")


def measured(cell, decode, requests, journal):
    """Measure one cell without the warm-up's call in the record."""
    return measure([Job(cell, started(decode))], requests, journal, CPU)[0]


def started(decode):
    """What makes the decode of the warm-up, which does nothing, and then the one that is measured."""
    made = iter([lambda requests, on_finish: None, decode])
    return lambda: next(made)


def test_an_interrupted_cell_goes_on(tmp_path):
    """What is finished is timed by the shares that ended; the interrupted one is decoded again as a whole."""
    path, calls, requests = tmp_path / "requests.jsonl", [], [Request([i], 3) for i in range(16)]
    first, second = list(range(8)), list(range(8, 16))
    whole = fake_decode(calls)

    def killed(requests, on_finish):
        return (whole if requests[0].prompt_ids[0] == 0 else fake_decode(calls, stop_after=3))(requests, on_finish)

    with pytest.raises(KeyboardInterrupt):
        measured(CELL, killed, requests, Journal(path, {"seed": 0}))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("index") for line in lines] == [None, *first, None, 8, 9, 10]
    with path.open("a") as file:
        file.write('{"cell": "torn by a ki')
    with pytest.raises(FileExistsError, match="--resume"):
        Journal(path, {"seed": 0})
    with pytest.raises(ValueError, match="seed 0, not 1"):
        Journal(path, {"seed": 1}, resume=True)
    run = measured(CELL, fake_decode(calls), requests, Journal(path, {"seed": 0}, resume=True))
    assert calls == [first, second, second]
    assert [json.loads(line) for line in path.read_text().splitlines()][: len(lines)] == lines
    assert [r.tokens[0] for r in run.results] == list(range(16))
    unbroken = measured(CELL, fake_decode([]), requests, Journal(tmp_path / "unbroken.jsonl", {}))
    assert run.totals | {"peak_memory_mib": 0} == unbroken.totals | {"peak_memory_mib": 0}
    assert run.results == unbroken.results
    assert run.tokens_per_second == 2 * 16 / 4.0
    (shape,) = run.totals["shapes"]
    assert (shape["rounds"], shape["tokens"], shape["seconds"], shape["median_seconds"]) == (4, 32, 4.0, 1.0)
    again = measured(CELL, fake_decode(calls), requests, Journal(path, {"seed": 0}, resume=True))
    assert len(calls) == 3
    assert again.totals == run.totals
    assert again.results == run.results


@pytest.mark.parametrize("lines", [-1, -2])
def test_a_cell_that_lacks_its_last_lines_keeps_its_rounds(tmp_path, lines):
    """The prompts of a cell may all be there while its totals are not."""
    path, calls = tmp_path / "requests.jsonl", []
    run = measured(CELL, fake_decode(calls), REQUESTS, Journal(path, {}))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    again = measured(CELL, fake_decode(calls), REQUESTS, Journal(path, {}, resume=True))
    assert len(calls) == -lines
    assert again.totals["shapes"] == run.totals["shapes"] != []
    assert again.tokens_per_second == run.tokens_per_second


def test_cells_take_turns(tmp_path):
    journal = Journal(tmp_path / "requests.jsonl", {})
    requests, order = [Request([i], 3) for i in range(8)], []

    def job(name):
        decode = fake_decode([])

        def noted(requests, on_finish):
            order.append((name, [r.prompt_ids[0] for r in requests]))
            return decode(requests, on_finish)

        return Job(Cell(name, 1, 0.0, 4), started(noted))

    runs = measure([job("a"), job("b")], requests, journal, CPU)
    first, second = [0, 1, 2, 3], [4, 5, 6, 7]
    assert order == [("a", first), ("b", first), ("b", second), ("a", second)]
    for run in runs:
        assert [r.tokens[0] for r in run.results] == list(range(8))
        assert (run.totals["decode_seconds"], run.totals["steps"], run.totals["timed_rounds"]) == (4.0, 4, 8)


def test_summary(tmp_path):
    journal = Journal(tmp_path / "requests.jsonl", {})
    plain = measured(Cell("AR", 2, 0.0), fake_decode([]), REQUESTS, journal)
    run = measured(CELL, fake_decode([]), REQUESTS, journal)
    run.results[1].tokens[2] += 1
    run.totals["decode_seconds"] = 1.0
    found = summary(run, plain, ["a", "b", "a", "b", "a"])
    assert (found["mat"], found["mat_drafts"], found["rounds"], found["mean_rows"]) == (2.0, 1.0, 5, 2.5)
    assert (found["tokens_per_second"], found["speedup"]) == (10.0, 2.0)
    assert found["lossless"] == 4 / 5
    assert found["round_ms"] == {"draft": 250, "correct": 125, "verify": 500, "host": 125, "total": 1000}
    assert found["ttft_ms"]["p50"] == pytest.approx(100)
    assert found["itl_ms"]["p99"] == pytest.approx(100)
    assert found["round_gap_ms"]["p50"] == pytest.approx(200)
    assert found["families"]["a"] == {
        "prompts": 3, "mat": 2.0, "mat_prompt_mean": 2.0, "stream_tokens_per_second": pytest.approx(10),
        "speedup": pytest.approx(1.0),
    }  # fmt: skip
    own = summary(plain, plain, ["a"] * 5)
    assert (own["mat"], own["lossless"], own["speedup"]) == (None, None, 1.0)
