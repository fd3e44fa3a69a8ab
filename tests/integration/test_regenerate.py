"""Answers written by the target: resumable by row, nothing lost, nothing twice."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdraft.data.rows import read_rows
from specdraft.regenerate import engine as module
from specdraft.regenerate.conversations import Answer

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

    run.tmp = tmp_path  # type: ignore[attr-defined]
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
    assert [path.name for path in out.parent.glob("cut.jsonl.*")] == ["cut.jsonl.settings.json"]


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
    with lzma.open(out, "rt") as file:
        # the answer to what row 0 asked before stays too, behind those that are asked for
        assert [json.loads(line)["prompt"] for line in file] == [row["prompt"] for row in [*changed, PROMPTS[0]]]
    with pytest.raises(ValueError, match=r"was answered with .*'temperature': 0\.0"):
        answer(changed, "out.jsonl.xz", "--extend", "--temperature", 0.7)


def test_a_look_at_the_first_rows_keeps_the_other_answers(answer: Callable[..., Path], decoded: list[int]) -> None:
    decoded[:] = [-1]
    with pytest.raises(KeyboardInterrupt):
        answer(PROMPTS, "cut.jsonl")
    decoded.clear()
    few = answer(PROMPTS, "cut.jsonl", "--limit", 3)
    assert not decoded
    assert [row["id"] for row in read(few)] == [row["id"] for row in PROMPTS[:16]]
    new = [{"id": "new", "prompt": "take the pear"}]
    assert [row["id"] for row in read(answer(new, "cut.jsonl", "--extend"))][:2] == ["new", PROMPTS[0]["id"]]
    assert len(read(few)) == 17


def test_rows_that_cannot_be_answered_are_set_aside(
    answer: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Engine, "_answer", lambda *_: Answer("fine"))
    endless = {"id": "endless", "prompt": "one " * 5000}
    outgrown = {"id": "outgrown", "turns": ["one", "two " * 5000, "three"]}
    with pytest.warns(
        UserWarning, match=r"2 of 22 rows could not be answered; 1 of them .*the first, 'endless': it takes"
    ):
        out = answer([*PROMPTS[:9], endless, *PROMPTS[9:], outgrown], "out.jsonl")
    found = read(out)
    assert [row["id"] for row in found] == [*(row["id"] for row in PROMPTS), "outgrown"]
    assert [message["role"] for message in found[-1]["messages"]] == ["user", "assistant"]
    assert [message["content"][:5] for message in found[-1]["unanswered"]] == ["two t", "three"]
    with pytest.raises(
        ValueError, match=r"none of 1 rows could be answered; the first, 'endless'.*lower max_new_tokens"
    ):
        answer([endless], "none.jsonl")


def test_other_settings_and_repeated_rows_are_refused(answer: Callable[..., Path], decoded: list[int]) -> None:
    decoded[:] = [-1]
    with pytest.raises(KeyboardInterrupt):
        answer(PROMPTS, "cut.jsonl")
    with pytest.raises(ValueError, match=r"'temperature': 0\.0"):
        answer(PROMPTS, "cut.jsonl", "--temperature", 0.7)
    with pytest.raises(ValueError, match=r"row 2 \('row-0'\) occurs twice"):
        answer([PROMPTS[0], PROMPTS[0]], "twice.jsonl")


def test_a_killed_run_goes_on_behind_the_last_whole_group(answer: Callable[..., Path], decoded: list[int]) -> None:
    sampled = ("--temperature", 1.0, "--top-p", 0.9, "--top-k", 20)
    whole = answer(PROMPTS, "whole.jsonl", *sampled).read_bytes()
    decoded[:] = [-1]
    with pytest.raises(KeyboardInterrupt):
        answer(PROMPTS, "cut.jsonl", *sampled)
    out = answer.tmp / "cut.jsonl"  # type: ignore[attr-defined]
    part = out.with_name("cut.jsonl.part.jsonl")
    assert len(part.read_text().splitlines()) == 16
    with part.open("a") as file:  # lines of a group that the crash cut in the middle
        file.write(json.dumps({**PROMPTS[16], "response": "left over"}) + "\n")
    decoded.clear()
    assert answer(PROMPTS, "cut.jsonl", *sampled).read_bytes() == whole
    assert sum(decoded) == 4
    answer(PROMPTS, "greedy.jsonl")
    assert read(out.with_name("greedy.jsonl")) != read(out)


def test_the_target_answers_turn_by_turn_and_reads_its_own_answers(
    answer: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    original = module.encode_messages

    def watching(tokenizer: Any, messages: list[dict[str, str]], options: object = None) -> list[int]:
        asked.append(" | ".join(f"{message['role']}: {message['content']}" for message in messages))
        return original(tokenizer, messages)

    monkeypatch.setattr(module, "encode_messages", watching)
    monkeypatch.setattr(module.Engine, "_answer", lambda *_: Answer(f"answer {len(asked)}"))
    rows = [
        {
            "id": "long",
            "messages": [
                {"role": "system", "content": "take"},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "not the target's"},
                {"role": "user", "content": "two"},
            ],
        },
        {"id": "turns", "turns": ["three", "four"]},
        {"id": "short", "prompt": "five", "response": "old", "prompt_ids": [1], "finished": False},
    ]
    long, turns, short = read(answer(rows, "out.jsonl"))
    assert asked == [
        "system: take | user: one",
        "user: three",
        "user: five",
        "system: take | user: one | assistant: answer 3 | user: two",
        "user: three | assistant: answer 3 | user: four",
    ]
    assert [m["content"] for m in long["messages"]] == ["take", "one", "answer 3", "two", "answer 5"]
    assert [m["role"] for m in long["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in turns["messages"]] == ["three", "answer 3", "four", "answer 5"]
    assert short == {"id": "short", "prompt": "five", "response": "answer 3"}


def test_ids_are_stored_where_a_text_loses_tokens_and_a_cut_answer_ends_the_conversation(
    answer: Callable[..., Path], tiny_target: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_target)
    rows = [{"id": f"r{i}", "turns": [word, "and"]} for i, word in enumerate(WORDS)]
    out = answer(rows, "out.jsonl")
    found = read(out)
    cut = [row for row in found if row.get("finished") is False]
    assert cut  # a random target seldom ends a turn within six tokens
    for row in cut:
        last = row["messages"][-1]
        assert last["role"] == "assistant"
        if "response_ids" in row:
            assert tokenizer.decode(row["response_ids"], skip_special_tokens=True) == last["content"]
        else:
            assert len(tokenizer(last["content"], add_special_tokens=False)["input_ids"]) == 6
        if len(row["messages"]) == 2:
            assert row["unanswered"] == [{"role": "user", "content": "and"}]
    assert any("response_ids" in row for row in found)
    assert any("unanswered" in row for row in found)
    # such rows are known again, and can be trained on
    with pytest.raises(FileExistsError):
        answer(rows, "out.jsonl")
    assert answer([*rows, PROMPTS[0]], "out.jsonl", "--extend") == out
    assert read(out)[:-1] == found
    assert len(list(read_rows(str(out)))) == len(rows) + 1
