"""The data sets that papers on speculative decoding report, by name: from the hub or from a local file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from specdraft.data.sources import Record, read_records

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class EvaluationSet:
    """A data set of prompts.

    The prompts are worded as those of the DFlash harness, so that results can be held against published ones. Of a set
    that is cut the first rows are taken, where that harness shuffles before it cuts: the sample is another one.

    Attributes:
        name: What it is called on the command line.
        source: Data set of the hub; for ``files`` a name for messages.
        columns: Columns that the prompt is made of.
        turns: The user's turns of a row.
        config: Configuration of the data set.
        split: Its split.
        files: Addresses of JSONL files that are read instead, where the hub has no table.
        reported: Rows that the papers of the DFlash family decode.
    """

    name: str
    source: str
    columns: tuple[str, ...]
    turns: Callable[[Fields], list[str]]
    config: str | None = None
    split: str = "test"
    files: tuple[str, ...] = ()
    reported: int | None = None


def _reasoned(column: str) -> Callable[[Fields], list[str]]:
    ending = "Please reason step by step, and put your final answer within \\boxed{}."
    return lambda row: [f"{row[column]}\n{ending}"]


def _column(column: str) -> Callable[[Fields], list[str]]:
    return lambda row: [str(row[column])]


def _turns(column: str) -> Callable[[Fields], list[str]]:
    return lambda row: [str(turn) for turn in row[column]]


def _human_eval(row: Fields) -> list[str]:
    task = "Write a solution to the following problem and make sure that it passes the tests:"
    return [f"{task}\n```python\n{row['prompt']}\n```"]


def _alpaca(row: Fields) -> list[str]:
    given = f"\n\nInput:\n{row['input']}" if row["input"] else ""
    return [f"{row['instruction']}{given}"]


def _live_code_bench(row: Fields) -> list[str]:
    role = (
        "You are an expert Python programmer. You will be given a question (problem specification) and will generate "
        "a correct Python program that matches the specification and passes all tests. You will NOT return anything "
        "except for the program"
    )
    starter = row.get("starter_code")
    how = "Use the following code structure" if starter else "Write your code in the following format"
    code = starter or "# YOUR CODE HERE"
    parts = [
        role,
        f"### Question:\n{row['question_content']}",
        f"### Format: {how}:\n```python\n{code}\n```",
        "### Answer: (use the provided format with backticks)",
    ]
    return ["\n\n".join(parts)]


_LCB = "https://huggingface.co/datasets/livecodebench/code_generation_lite/resolve/main/"
_SPEC_BENCH = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"

EVALUATION_SETS: dict[str, EvaluationSet] = {
    each.name: each
    for each in (
        EvaluationSet("gsm8k", "openai/gsm8k", ("question",), _reasoned("question"), "main", reported=128),
        EvaluationSet("math500", "HuggingFaceH4/MATH-500", ("problem",), _reasoned("problem"), reported=128),
        EvaluationSet(
            "aime24", "HuggingFaceH4/aime_2024", ("problem",), _reasoned("problem"), split="train", reported=30
        ),
        EvaluationSet("aime25", "MathArena/aime_2025", ("problem",), _reasoned("problem"), split="train", reported=30),
        EvaluationSet("humaneval", "openai/openai_humaneval", ("prompt", "entry_point"), _human_eval, reported=164),
        EvaluationSet(
            "mbpp",
            "google-research-datasets/mbpp",
            ("prompt", "test_list"),
            _column("prompt"),
            "sanitized",
            reported=128,
        ),
        EvaluationSet(
            "livecodebench",
            "livecodebench/code_generation_lite",
            ("question_content", "starter_code"),
            _live_code_bench,
            files=tuple(f"{_LCB}test{part}.jsonl" for part in ("", *range(2, 7))),
            reported=128,
        ),
        EvaluationSet(
            "mt-bench", "HuggingFaceH4/mt_bench_prompts", ("prompt",), _turns("prompt"), split="train", reported=80
        ),
        EvaluationSet(
            "alpaca", "tatsu-lab/alpaca", ("instruction", "input"), _alpaca, split="train", reported=128
        ),
        EvaluationSet("spec-bench", "Spec-Bench", ("turns",), _turns("turns"), files=(_SPEC_BENCH,), reported=480),
    )
}  # fmt: skip


def evaluation_rows(name: str, file: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
    """Rows of an evaluation set with ``id``, ``family`` (the set), ``prompt`` (the first turn) and ``turns``.

    A local file holds rows with ``turns``, with the set's own columns, or with ``prompt``.

    Args:
        name: Key of :data:`EVALUATION_SETS`.
        file: JSONL, JSON or Parquet file to read instead of the hub.
        limit: Rows at most, from the beginning.

    Raises:
        FileNotFoundError: If the file does not exist, or the data set cannot be reached.
        ValueError: If there is no set of that name, or a row is not of the set; with its place.
    """
    if name not in EVALUATION_SETS:
        raise ValueError(f"evaluation set {name!r} is unknown; choose one of {', '.join(EVALUATION_SETS)}")
    chosen = EVALUATION_SETS[name]
    records = _from_hub(chosen) if file is None else read_records(file)
    rows: list[dict[str, Any]] = []
    for place, row in islice(records, limit):
        turns = _turns_of(chosen, row, place)
        rows.append({"id": f"{name}-{len(rows)}", "family": name, "prompt": turns[0], "turns": turns})
    return rows


def _turns_of(chosen: EvaluationSet, row: Any, place: str) -> list[str]:
    if not isinstance(row, Mapping):
        raise ValueError(f"{place}: a row must be an object, got {type(row).__name__}")
    if "turns" in row:
        turns: Any = row["turns"]
    elif all(column in row for column in chosen.columns):
        turns = chosen.turns(row)
    elif isinstance(row.get("prompt"), str):
        turns = [row["prompt"]]
    else:
        raise ValueError(
            f"{place}: a row of {chosen.name!r} needs a list 'turns', a text 'prompt', or the set's own columns "
            f"{', '.join(chosen.columns)}; it has {', '.join(map(str, row)) or 'nothing'}"
        )
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise ValueError(f"{place}: the turns must be a list of at least one text, none of them empty; got {turns!r}")
    return turns


def _from_hub(chosen: EvaluationSet) -> Iterator[Record]:
    from datasets import load_dataset

    try:
        if chosen.files:
            rows = load_dataset("json", data_files={"test": list(chosen.files)}, split="test")
        else:
            rows = load_dataset(chosen.source, chosen.config, split=chosen.split)
    except Exception as error:  # the hub's client raises its own classes, which are no OSError
        where = ", ".join(chosen.files[:1]) or ", ".join(filter(None, (chosen.source, chosen.config, chosen.split)))
        raise FileNotFoundError(
            f"evaluation set {chosen.name!r} is missing: {where} could not be loaded "
            f"({type(error).__name__}: {error}). Load it once while online, or give a local file as "
            f'{chosen.name}=FILE, a JSONL with rows {{"turns": ["..."]}} or the set\'s own columns '
            f"({', '.join(chosen.columns)})"
        ) from error
    return ((f"{chosen.name}[{index}]", dict(row)) for index, row in enumerate(rows))
