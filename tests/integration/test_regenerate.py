"""Answers written by the target: resumable by row, nothing lost, nothing twice."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdraft import regenerate as module

Run = Callable[..., None]
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "red", "blue"]
PROMPTS = [
    {"id": f"row-{i}", "family": "add", "prompt": f"add {WORDS[i % 12]} and {WORDS[i // 12]}"} for i in range(20)
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def answer(run_cli: Run, tiny_target: Path, tmp_path: Path) -> Callable[..., Path]:
    """Answer rows into a file by the command line; two requests at a time, so that 20 rows are two chunks."""

    def run(rows: list[dict[str, Any]], name: str, *words: object) -> Path:
        prompts = write(tmp_path / "prompts.jsonl", rows)
        options = ("--target", tiny_target, "--max-new-tokens", 6, "--concurrency", 2, "--device", "cpu")
        run_cli("regenerate", "--prompts", prompts, "--out", tmp_path / name, *options, *words)
        return tmp_path / name

    return run


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of requests of every call of the decoder; a call fails where the list holds -1 beforehand."""
    calls: list[int] = []
    original = module.autoregressive_decode

    def counting(target: Any, requests: list[Any], **options: Any) -> Any:
        if len(calls) > 1 and calls[0] == -1:
            raise KeyboardInterrupt
        calls.append(len(requests))
        return original(target, requests, **options)

    monkeypatch.setattr(module, "autoregressive_decode", counting)
    return calls


def test_an_interrupted_run_answers_what_is_missing_whatever_the_order(
    answer: Callable[..., Path], decoded: list[int]
) -> None:
    whole = read(answer(PROMPTS, "whole.jsonl"))
    assert [{k: row[k] for k in ("id", "family", "prompt")} for row in whole] == PROMPTS
    assert all(isinstance(row["response"], str) for row in whole)
    decoded[:] = [-1]
    with pytest.raises(KeyboardInterrupt):
        answer(PROMPTS, "cut.jsonl")
    decoded.clear()
    shuffled = random.Random(0).sample(PROMPTS, len(PROMPTS))
    out = answer(shuffled, "cut.jsonl")
    assert sum(decoded) == len(PROMPTS) - 16  # one chunk of eight per request in flight was kept
    found = {row["id"]: row for row in read(out)}
    assert [row["id"] for row in read(out)] == [row["id"] for row in shuffled]
    assert found == {row["id"]: row for row in whole}
    assert not list(out.parent.glob("cut.jsonl.*"))


def test_a_line_that_was_cut_is_answered_again(answer: Callable[..., Path], tmp_path: Path, decoded: list[int]) -> None:
    whole = answer(PROMPTS, "whole.jsonl").read_text()
    lines = whole.splitlines(keepends=True)
    (tmp_path / "cut.jsonl.part.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    decoded.clear()
    assert answer(PROMPTS, "cut.jsonl").read_text() == whole
    assert sum(decoded) == len(PROMPTS) - 3


def test_a_finished_file_is_kept_unless_it_is_extended(answer: Callable[..., Path], decoded: list[int]) -> None:
    out = answer(PROMPTS[:5], "out.jsonl.xz")
    with pytest.raises(FileExistsError, match="--extend"):
        answer(PROMPTS, "out.jsonl.xz")
    decoded.clear()
    changed = [{**PROMPTS[0], "prompt": "take the apple"}, *PROMPTS[1:8]]
    assert answer(changed, "out.jsonl.xz", "--extend") == out
    assert sum(decoded) == 4  # three new rows, and the one whose prompt changed
    with module._opened(out, ".xz", "rt") as file:
        assert [json.loads(line)["prompt"] for line in file] == [row["prompt"] for row in changed]


def test_other_settings_and_repeated_rows_are_refused(answer: Callable[..., Path], decoded: list[int]) -> None:
    decoded[:] = [-1]
    with pytest.raises(KeyboardInterrupt):
        answer(PROMPTS, "cut.jsonl")
    with pytest.raises(ValueError, match=r"'temperature': 0\.0"):
        answer(PROMPTS, "cut.jsonl", "--temperature", 0.7)
    with pytest.raises(ValueError, match=r"row 2 \('row-0'\) occurs twice"):
        answer([PROMPTS[0], PROMPTS[0]], "twice.jsonl")
