"""Evaluation sets by name: prompts of every set, local files, and what is said without a hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdraft.commands import prompt_rows
from specdraft.data.evaluation_sets import EVALUATION_SETS, evaluation_rows

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
RAW: dict[str, tuple[dict[str, Any], list[str]]] = {
    "gsm8k": ({"question": "2+2?", "answer": "4"}, ["2+2?" + BOXED]),
    "math500": ({"problem": "x?", "solution": ""}, ["x?" + BOXED]),
    "aime24": ({"problem": "y?", "year": 2024}, ["y?" + BOXED]),
    "aime25": ({"problem": "z?"}, ["z?" + BOXED]),
    "humaneval": (
        {"prompt": "def f():", "entry_point": "f"},
        ["Write a solution to the following problem and make sure that it passes the tests:\n```python\ndef f():\n```"],
    ),
    "mbpp": ({"prompt": "Write f.", "test_list": []}, ["Write f."]),
    "alpaca": ({"instruction": "Add.", "input": "1 2", "output": "3"}, ["Add.\n\nInput:\n1 2"]),
    "mt-bench": ({"prompt": ["one", "two"], "category": "writing"}, ["one", "two"]),
    "spec-bench": ({"turns": ["q"], "category": "qa"}, ["q"]),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def put(*rows: Any) -> str:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return put


@pytest.mark.parametrize("name", RAW)
def test_own_columns_make_the_prompt(name: str, write: Callable[..., str]) -> None:
    raw, turns = RAW[name]
    (row,) = evaluation_rows(name, write(raw))
    assert row == {"id": f"{name}-0", "family": name, "prompt": turns[0], "turns": turns}


def test_every_set_is_covered() -> None:
    assert set(EVALUATION_SETS) == {*RAW, "livecodebench"}


def test_code_problems_with_and_without_a_start(write: Callable[..., str]) -> None:
    rows = evaluation_rows(
        "livecodebench",
        write(
            {"question_content": "Sort.", "starter_code": "class S:"},
            {"question_content": "Sum.", "starter_code": ""},
        ),
    )
    assert "### Question:\nSort." in rows[0]["prompt"]
    assert "```python\nclass S:\n```" in rows[0]["prompt"]
    assert "```python\n# YOUR CODE HERE\n```" in rows[1]["prompt"]


def test_turns_and_prompts_of_a_local_file_are_taken_as_they_are(write: Callable[..., str]) -> None:
    file = write({"turns": ["a", "b"]}, {"prompt": "c"})
    assert [row["turns"] for row in evaluation_rows("gsm8k", file)] == [["a", "b"], ["c"]]
    assert [row["turns"] for row in evaluation_rows("gsm8k", file, 1)] == [["a", "b"]]
    assert prompt_rows(f"gsm8k={file}")[0]["family"] == "gsm8k"
    assert prompt_rows(file)[0]["prompt"] == "a"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, r"rows.jsonl:1: a row of 'gsm8k' needs a list 'turns'.*question; it has text"),
        ({"turns": []}, "at least one text"),
        ({"turns": ["a", " "]}, "none of them empty"),
        ([1], "must be an object, got list"),
    ],
)
def test_other_rows_are_refused(row: Any, message: str, write: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match=message):
        evaluation_rows("gsm8k", write(row))


@pytest.mark.parametrize("name", ["gsm8k", "livecodebench"])
def test_without_a_hub_the_error_says_how_to_go_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(*_: Any, **__: Any) -> None:
        raise RuntimeError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(FileNotFoundError, match=rf"evaluation set '{name}' is missing: .*no route.*{name}=FILE"):
        evaluation_rows(name)


def test_the_hub_is_asked_for_the_right_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def table(*words: Any, **options: Any) -> list[dict[str, Any]]:
        asked.append((words, options))
        return [{"question": "2+2?"}] if words[0] != "json" else [{"turns": ["q"]}]

    monkeypatch.setattr(datasets, "load_dataset", table)
    assert evaluation_rows("gsm8k")[0]["prompt"] == "2+2?" + BOXED
    assert evaluation_rows("spec-bench")[0]["prompt"] == "q"
    assert asked[0] == (("openai/gsm8k", "main"), {"split": "test"})
    assert asked[1][1]["data_files"]["test"][0].endswith("question.jsonl")


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose one of gsm8k, math500"):
        evaluation_rows("gsm9k")
    with pytest.raises(FileNotFoundError, match="or one of gsm8k"):
        prompt_rows(str(tmp_path / "gsm9k"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        evaluation_rows("gsm8k", str(tmp_path / "none.jsonl"))
