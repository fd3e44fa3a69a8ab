"""The papers' evaluation: speed-up and tau per data set, beside the published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from specdraft.bench.report import title
from specdraft.data.evaluation_sets import EVALUATION_SETS, evaluation_rows
from specdraft.scratch import write_text

Record = dict[str, Any]
# the columns of the DFlash paper
PAPER_SETS = ("gsm8k", "math500", "aime25", "humaneval", "mbpp", "livecodebench", "mt-bench")
PAPER_TOKENS = 2048


def suite_rows(sets: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows of all sets, as many of each as the papers decode.

    Args:
        sets: Names, alone or as ``name=FILE``; None takes those of the DFlash paper.

    Raises:
        FileNotFoundError: If a set is neither on the hub's side nor in a file.
        ValueError: If a name is unknown or named twice.
    """
    given = [each.partition("=") for each in (sets if sets is not None else PAPER_SETS)]
    names = [name for name, _, _ in given]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"sets {names} must name at least one evaluation set, each once")
    rows = []
    for name, _, file in given:
        limit = EVALUATION_SETS[name].reported if name in EVALUATION_SETS else None
        rows += evaluation_rows(name, file or None, limit)
    return rows


def published() -> list[Record]:
    """Published figures: ``method``, ``target``, ``temperature``, ``source``, ``setting``, ``results``, ``average``.

    ``results`` maps a set to ``[speed-up, tau]``; None where a source does not give one. Tau counts the bonus token.
    """
    text = (files("specdraft.bench") / "published.yaml").read_text(encoding="utf-8")
    out: list[Record] = yaml.safe_load(text)
    return out


def paper_table(records: Sequence[Record], target: str, sets: Sequence[str]) -> str:
    """Markdown in the papers' layout: a table per temperature, own rows first.

    Args:
        records: One per cell, see :func:`specdraft.bench.cells.summary`; cells at concurrency 1 are shown.
        target: The target; published figures of it come first.
        sets: The evaluation sets, in the order of the columns.
    """
    out = [
        "## The papers' table",
        "",
        "Speed-up over the lean autoregressive loop (tokens per second of waiting, prefill apart) / tau: tokens per "
        "round, the bonus token counted, mean over prompts of each prompt's mean, as the papers have it. One request "
        "at a time. Published rows were measured on other machines, against other autoregressive loops and often for "
        "another target; their averages are over the sources' own sets. Compare columns within a row.",
    ]
    drafted = [r for r in records if r["block_size"] is not None and r["concurrency"] == 1]
    for temperature in dict.fromkeys(record["temperature"] for record in drafted):
        out += [
            "",
            f"### T = {temperature:g}",
            "",
            _row(["method", *sets, "average"]),
            _row([":--"] + ["--:"] * (len(sets) + 1)),
        ]
        for record in (r for r in drafted if r["temperature"] == temperature):
            pairs = [_own(record["families"], name) for name in sets]
            out.append(_row([f"**{title(record)}**", *map(_pair, pairs), _pair(_mean(pairs))]))
        theirs = [each for each in published() if each["temperature"] == temperature]
        for each in sorted(theirs, key=lambda each: not _same_target(each["target"], target)):
            pairs = [tuple(each["results"].get(name, (None, None))) for name in sets]
            average = each.get("average")
            label = f"{each['method']}, {each['target']} ({each['source']})"
            out.append(_row([label, *map(_pair, pairs), _pair(tuple(average) if average else (None, None))]))
    notes = {f"{each['source']}: {each['setting']}." for each in published()}
    return "\n".join([*out, "", *sorted(notes), ""])


def write_paper_table(
    folder: Path, records: Sequence[Record], target: str, sets: Sequence[str], made_with: str = ""
) -> str:
    """Write ``paper.md`` and return its text; arguments of :func:`paper_table`, and a line about the own rows."""
    text = paper_table(records, target, sets) + (f"\n{made_with}\n" if made_with else "")
    write_text(folder / "paper.md", text)
    return text


def _own(families: Mapping[str, Record], name: str) -> tuple[float | None, float | None]:
    own = families.get(name)
    return (None, None) if own is None else (own["speedup"], own["mat_prompt_mean"])


def _mean(pairs: Sequence[tuple[float | None, float | None]]) -> tuple[float | None, float | None]:
    """Mean over the sets, as the papers average; None unless all sets have the number."""
    means = []
    for place in (0, 1):
        values = [pair[place] for pair in pairs]
        known = [value for value in values if value is not None]
        means.append(sum(known) / len(known) if known and len(known) == len(values) else None)
    return means[0], means[1]


def _pair(pair: Sequence[float | None]) -> str:
    if all(value is None for value in pair):
        return ""
    return " / ".join("-" if value is None else f"{value:.2f}" for value in pair)


def _same_target(theirs: str, ours: str) -> bool:
    return theirs.lower() in ours.lower()


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
