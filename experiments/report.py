"""The ablations as one page, from what the runs left in their folders; nothing is measured here.

    python experiments/report.py runs/ --out experiments/REPORT.md

Runs of one name (the logger's ``name``) are one row, one run per seed. Values are those of the step with the best
decoded MAT, as ``specdraft compare`` takes them; intervals draw prompts anew and are paired with the reference.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdraft.bootstrap import Array, common, interval, mat, speedup
from specdraft.runs import Run, differences, read_config, read_provenance, read_runs, shared_facts


@dataclass(frozen=True)
class Section:
    """A table.

    Attributes:
        title: Its heading.
        prefix: What the names of its runs begin with.
        reference: Name of the row that the others are compared with.
        question: What it answers.
    """

    title: str
    prefix: str
    reference: str
    question: str


SECTIONS = (
    Section("Correctors", "corrector_", "corrector_none", "What does each corrector add to one and the same drafter?"),
    Section("DScout, step by step", "dscout_", "dscout_1_base", "What does each part of the recipe add?"),
    Section("Trained longer", "long_", "long_base", "What is left of a difference after more steps?"),
    Section("Other runs", "", "", "Everything else below the same folders."),
)


@dataclass(frozen=True)
class Row:
    """Runs of one setting, one per seed."""

    name: str
    runs: list[Run]

    def mean(self, tag: str) -> float | None:
        """Mean over the seeds of a logged value; None where a run lacks it."""
        values = [run.values.get(tag) for run in self.runs]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None


def main(words: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="folders to search for runs, such as runs/")
    parser.add_argument("--out", default="experiments/REPORT.md", help="file to write")
    parser.add_argument("--at", choices=("best", "last"), default="best", help="which step of a run counts")
    given = parser.parse_args(words)
    Path(given.out).write_text(report(given.folders, given.at), encoding="utf-8")
    print(f"wrote {given.out}")


def report(folders: Sequence[str], at: str = "best") -> str:
    """The whole page.

    Args:
        folders: Folders to search for runs and tunings.
        at: Which step's values to take, ``best`` by decoded MAT or ``last``.

    Raises:
        FileNotFoundError: If there is neither a run that decoded nor a tuning.
    """
    tunings = sorted(path for folder in folders for path in Path(folder).rglob("tune.json"))
    try:
        runs = read_runs(list(folders), at)  # type: ignore[arg-type]
    except FileNotFoundError:
        if not tunings:
            raise
        runs = []
    out = [
        "# Ablations",
        "",
        "Written by `python experiments/report.py` from the logs of the runs; do not edit. MAT is tokens per round of "
        "real decoding, the bonus token counted; `mat_drafts` leaves it out. The speed-up is over the lean "
        "autoregressive loop of the same run, prefill apart. Intervals are 95 % bootstrap intervals over prompts; "
        "differences are over the prompts that both rows decoded, and the seeds that both have. Values are those of "
        f"the {at} step.",
    ]
    left = runs
    for section in SECTIONS:
        mine = [run for run in left if run.folder.parent.name.startswith(section.prefix)]
        left = [run for run in left if run not in mine]
        if mine:
            out += ["", f"## {section.title}", "", section.question, "", *_section(section, mine)]
    for path in tunings:
        out += ["", f"## Policy tuned by `{path.parent.name}`", "", *_tuning(path)]
    return "\n".join(out) + "\n"


# ---------------------------------------------------------------- runs


def _section(section: Section, runs: list[Run]) -> list[str]:
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.folder.parent.name, []).append(run)
    rows = [Row(name, own) for name, own in sorted(by_name.items())]
    reference = next((row for row in rows if row.name == section.reference), None)
    heads = ["setting", "seeds", "steps", "MAT", "95 %", "mat_drafts", "speed-up", "95 %"]
    heads += ["MAT - ref", "95 %", "equal to AR"] if reference is not None else ["equal to AR"]
    table = [heads, [":--"] + ["--:"] * (len(heads) - 1), *(_cells(row, reference) for row in rows)]
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    if reference is not None:
        lines += ["", f"The reference is `{reference.name}`."]
    if said := shared_facts(runs):
        lines += ["", f"Measured with {said}."]
    return [*lines, "", *_comparable(rows), "", *_commands(rows)]


def _cells(row: Row, reference: Row | None) -> list[str]:
    counts = common([run.counts for run in row.runs])
    values = [f"`{row.name}`", ", ".join(_seed(run) for run in row.runs)]
    values += [", ".join(dict.fromkeys(str(_steps(run)) for run in row.runs))]
    values += [_number(row.mean("decode/mat")), _range(interval(_mean_mat, counts))]
    values += [_number(row.mean("decode/mat_drafts")), _number(row.mean("decode/speedup"))]
    values.append(_range(interval(_mean_speedup, counts)))
    if reference is not None:
        values += _gain(row, reference)
    lossless = row.mean("decode/lossless")
    return [*values, "" if lossless is None else f"{lossless:.0%}"]


def _gain(row: Row, reference: Row) -> list[str]:
    if row is reference:
        return ["", ""]
    mine, theirs = _same_seeds(row.runs, reference.runs)
    pair = common([run.counts for run in (*mine, *theirs)])
    if not len(pair[0]):
        return ["", ""]
    count = len(mine)

    def gain(*sums: Array) -> Array:
        return _mean_mat(*sums[:count]) - _mean_mat(*sums[count:])

    return [f"{float(gain(*(own.sum(0) for own in pair))):+.3f}", _range(interval(gain, pair))]


def _same_seeds(mine: list[Run], theirs: list[Run]) -> tuple[list[Run], list[Run]]:
    """Runs of the seeds that both have; all, where the reference is a single run or no seed is shared."""
    shared = {_seed(run) for run in mine} & {_seed(run) for run in theirs}
    if len(theirs) == 1 or not shared:
        return mine, theirs
    return [run for run in mine if _seed(run) in shared], [run for run in theirs if _seed(run) in shared]


def _mean_mat(*sums: Array) -> Array:
    return np.mean([mat(own) for own in sums], axis=0)


def _mean_speedup(*sums: Array) -> Array:
    return np.mean([speedup(own) for own in sums], axis=0)


def _comparable(rows: list[Row]) -> list[str]:
    """What must be known before two rows are set against each other."""
    runs = [run for row in rows for run in row.runs]
    found = [f"- {line}" for line in differences(runs)]
    for run in runs:
        missing = [name for name in ("config.yaml", "provenance.json") if not (run.folder / name).is_file()]
        if missing:
            found.append(f"- {run.name} left no {' and no '.join(missing)}, so that not everything can be compared")
    for name, values in (("steps", [_steps(run) for run in runs]), ("git revision", [_revision(run) for run in runs])):
        if len(set(values)) > 1:
            each = "; ".join(f"{value} in {run.name}" for value, run in zip(values, runs, strict=True))
            found.append(f"- {name}: {each}")
    own = [run.name for run in runs if not _draws_with_its_seed(run)]
    if own:
        found.append(
            "- seeds: only the initial weights are those of the seed shown, rows, anchors and dropout those of "
            f"model.seed, in {', '.join(own)}"
        )
    if len(runs) < 2:
        return ["A single run: there is nothing to compare it with."]
    if not found:
        return ["Comparable: the rows share target, prompts, decoding options, machine, steps and git revision."]
    return ["Not comparable in every respect:", "", *found]


def _commands(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        for run in row.runs:
            facts = read_provenance(run.folder)
            if measured := facts.get("measured"):  # by a run of its own, which trained that checkpoint
                trained = Path(measured["path"]).parent.parent / "provenance.json"
                if trained.is_file():
                    lines.append(f"    {_typed(json.loads(trained.read_text(encoding='utf-8')))}   # trains {run.name}")
            lines.append(f"    {_typed(facts)}   # {run.name}")
    return ["Commands:", "", *lines]


def _typed(facts: dict[str, Any]) -> str:
    command = facts.get("command")
    return shlex.join([Path(command[0]).name, *command[1:]]) if command else "(no provenance.json)"


def _revision(run: Run) -> str:
    found = read_provenance(run.folder)
    return (found.get("git") or "unknown")[:10] + (" (changed)" if found.get("git_dirty") else "")


def _seed(run: Run) -> str:
    return str(read_config(run.folder).get("seed_everything", "?"))


def _draws_with_its_seed(run: Run) -> bool:
    config = read_config(run.folder)
    return (config.get("model") or {}).get("seed") in (None, config.get("seed_everything"))


def _steps(run: Run) -> int:
    """Optimiser steps behind the values: the trainer's own count where the decoded prompts name it."""
    if "measured" in read_provenance(run.folder):
        return run.step
    kept = [int(path.stem.removeprefix("val-")) for path in (run.folder / "decoded").glob("val-*.csv")]
    return max((step for step in kept if step <= run.step + 1), default=run.step)


# ---------------------------------------------------------------- tunings


def _tuning(path: Path) -> list[str]:
    found = json.loads(path.read_text(encoding="utf-8"))
    facts = found["facts"]
    command = facts.get("command") or []
    out = [
        f"{facts['num_prompts']} prompts of {facts['prompts']}, seed {facts['seed']}, {facts['device_name']}, git "
        f"{(facts.get('git') or 'unknown')[:10]}. MAT and tokens/s of the chosen block size as measured in the check "
        "run, which keeps no interval.",
        "",
        f"    {shlex.join([Path(command[0]).name, *command[1:]])}" if command else "    (no command)",
    ]
    for check in found["checks"]:
        policies = list(check["policies"])
        heads = ["workload", "concurrency", "block size", "MAT", "mat_drafts", "tokens/s", "speed-up", "predicted"]
        heads += ["best fixed", "gain", "regret", *policies]
        out += ["", f"Temperature {check['temperature']:g}:", "", "| " + " | ".join(heads) + " |"]
        out.append("| " + " | ".join([":--"] + ["--:"] * (len(heads) - 1)) + " |")
        out += ["| " + " | ".join(_choice(check, each, policies)) + " |" for each in check["assessments"]]
    if not found["checks"]:
        out += ["", "It was not checked (`--check false`), so that there is nothing measured to report."]
    return out


def _choice(check: dict[str, Any], each: dict[str, Any], policies: list[str]) -> list[str]:
    where = {name: each[name] for name in ("workload", "concurrency")}
    grid = next(entry for entry in check["mat"] if where.items() <= entry.items())
    tokens = grid["mat"][str(each["chosen"])]
    plain = check["ar_tokens_per_second"][str(each["concurrency"])]
    # the baseline was decoded on all prompts, so that only all of them can be set against it
    faster = f"{each['measured'] / plain:.2f}x" if each["workload"] == "all" else ""
    rates = [
        next(rate["tokens_per_second"] for rate in check["policies"][name] if where.items() <= rate.items())
        for name in policies
    ]
    return [
        *(each["workload"], str(each["concurrency"]), str(each["chosen"])),
        *(f"{tokens:.3f}", f"{tokens - 1:.3f}", f"{each['measured']:.1f}", faster, f"{each['predicted']:.1f}"),
        *(str(each["fixed"]), f"{each['gain']:+.1%}", f"{each['regret']:.1%}", *(f"{rate:.1f}" for rate in rates)),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _range(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.3f}..{ends[1]:.3f}"


if __name__ == "__main__":
    main()
