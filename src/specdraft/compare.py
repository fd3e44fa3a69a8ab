"""Runs side by side, from what they left in their folders."""

from __future__ import annotations

import csv
import io
import json
import sys
from typing import Any, Literal

from specdraft.bootstrap import common, interval, mat, speedup
from specdraft.runs import Run, differences, read_runs, shared_facts

COLUMNS = {
    "MAT": "decode/mat",
    "val MAT": "val/mat",
    "tokens/s": "decode/tokens_per_second",
    "AR tokens/s": "decode/ar_tokens_per_second",
    "speed-up": "decode/speedup",
    "draft ms": "decode/round_ms/draft",
    "correct ms": "decode/round_ms/correct",
    "verify ms": "decode/round_ms/verify",
    "corrector parameters": "decode/corrector_parameters",
    "lossless": "decode/lossless",
}
GAINS = ("MAT 95 %", "speed-up 95 %", "MAT - ref", "MAT - ref 95 %", "x ref", "x ref 95 %")


def compare(
    runs: str | list[str],
    at: Literal["best", "last"] = "best",
    format: Literal["md", "csv", "json"] = "md",
    plot: str | None = None,
    reference: str | None = None,
) -> None:
    """Compare runs by what they logged: MAT, acceptance per position, tokens/s and the parts of a round.

    With 95 % bootstrap intervals over prompts, and over pairs of prompts for what a run gains over the reference:
    ``MAT - ref``, and ``x ref``, the quotient of the two speed-ups, each over the autoregressive loop of its own run.

    Args:
        runs: Folders to search for runs, such as ``runs/``.
        at: Take the values where ``decode/mat`` is largest, or the last ones.
        format: Table as Markdown, CSV or JSON.
        plot: PNG to write: MAT and speed-up per run.
        reference: Part of the name of the run to compare with; null takes the one without a corrector, else the first.

    Raises:
        FileNotFoundError: If a folder does not exist or holds no run that decoded.
        ValueError: If the reference is not exactly one run.
    """
    found = read_runs([runs] if isinstance(runs, str) else runs, at)
    base = reference_run(found, reference)
    gains = [intervals(run, base) for run in found]
    print(table(found, format, gains))
    if format == "md" and any(gains):
        print(f"\nref is {base.name}; intervals: 95 %, bootstrap over {len(base.counts)} prompts, pairs with ref")
    if format == "md" and (said := shared_facts(found)):
        print(f"\nmeasured with {said}")
    if warnings := differences(found):
        text = "\nNOT comparable in every column:\n" + "\n".join(f"- {line}" for line in warnings)
        print(text, file=sys.stdout if format == "md" else sys.stderr)  # what a program reads stays clean
    if plot:
        figure(found, gains).savefig(plot, dpi=150)


def reference_run(runs: list[Run], name: str | None) -> Run:
    """The run that others are compared with.

    Args:
        runs: The runs.
        name: Part of its name; None takes the first that was configured without a corrector, else the first with
            ``none`` in its name, else the first of all.

    Raises:
        ValueError: If not exactly one name contains ``name``.
    """
    if name is None:
        without = [run for run in runs if run.corrector.endswith("NoCorrector")]
        return next(iter(without or [run for run in runs if "none" in run.name] or runs))
    found = [run for run in runs if name in run.name]
    if len(found) != 1:
        raise ValueError(
            f"reference {name!r} is part of {len(found)} names; name one of {', '.join(run.name for run in runs)}"
        )
    return found[0]


def intervals(run: Run, reference: Run) -> dict[str, float | tuple[float, float]]:
    """Intervals of a run and what it gains over the reference; empty where a run kept no counts of its prompts.

    Returns:
        By column: values, and (lower, upper) ends at 95 %.
    """
    (alone,) = common([run.counts])
    out: dict[str, float | tuple[float, float] | None] = {
        "MAT 95 %": interval(mat, [alone]),
        "speed-up 95 %": interval(speedup, [alone]),
    }
    pair = common([run.counts, reference.counts])
    if run is not reference and len(pair[0]) > 1:
        gain, quotient = (lambda a, b: mat(a) - mat(b)), (lambda a, b: speedup(a) / speedup(b))
        sums = [counts.sum(0) for counts in pair]
        out |= {"MAT - ref": float(gain(*sums)), "MAT - ref 95 %": interval(gain, pair)}
        out |= {"x ref": float(quotient(*sums)), "x ref 95 %": interval(quotient, pair)}
    return {name: value for name, value in out.items() if value is not None}


def table(
    runs: list[Run],
    format: Literal["md", "csv", "json"] = "md",
    gains: list[dict[str, float | tuple[float, float]]] | None = None,
) -> str:
    """The comparison as text; a value that a run did not log is empty.

    Args:
        runs: The runs.
        format: Markdown, CSV or JSON.
        gains: Intervals of each run, see :func:`intervals`.
    """
    gains = gains or [{} for _ in runs]
    positions = sorted(
        {int(tag.rsplit("/", 1)[1]) for run in runs for tag in run.values if tag.startswith("decode/accept_at/")}
    )
    columns = COLUMNS | {f"a_{k}": f"decode/accept_at/{k}" for k in positions}
    if format == "json":
        whole = [
            {"run": run.name, "step": run.step, "made_with": run.made_with, **run.values, "intervals": gain}
            for run, gain in zip(runs, gains, strict=True)
        ]
        return json.dumps(whole, indent=1, default=str)
    extra = [name for name in GAINS if any(name in gain for gain in gains)]
    head = ["run", "step", *columns, *extra]
    rows = [
        [
            *(run.name, str(run.step)),
            *(_text(tag, run.values.get(tag)) for tag in columns.values()),
            *(_text(name, gain.get(name)) for name in extra),
        ]
        for run, gain in zip(runs, gains, strict=True)
    ]
    if format == "csv":
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
        return file.getvalue().rstrip("\n")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join(
        [f"| {lines[0]} |", "|" + "|".join("-" * (w + 2) for w in widths) + "|", *(f"| {x} |" for x in lines[1:])]
    )


def _text(name: str, value: float | tuple[float, float] | None) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return f"{value[0]:.3f}..{value[1]:.3f}"
    return f"{value:.0f}" if name.endswith("parameters") else f"{value:.3f}"


def figure(runs: list[Run], gains: list[dict[str, float | tuple[float, float]]] | None = None) -> Any:
    """Bars of MAT and speed-up, one per run, with their values and, where known, 95 % intervals.

    Args:
        runs: The runs.
        gains: Intervals of each run, see :func:`intervals`.

    Raises:
        ImportError: If matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("--plot needs matplotlib: pip install 'specdraft[plot]'") from error
    gains = gains or [{} for _ in runs]
    out = Figure(figsize=(9, 0.5 * len(runs) + 1.5), layout="constrained")
    panels = out.subplots(1, 2, sharey=True)
    names = [run.name for run in runs]
    columns = (
        ("decode/mat", "MAT 95 %", "MAT (bonus counted)", "#6baed6"),
        ("decode/speedup", "speed-up 95 %", "speed-up over lean AR", "#9ecae1"),
    )
    for axes, (tag, column, label, color) in zip(panels, columns, strict=True):
        values = [run.values.get(tag, 0.0) for run in runs]
        axes.barh(names, values, color=color)
        ends = [0.0] * len(runs)
        for place, (value, gain) in enumerate(zip(values, gains, strict=True)):
            found = gain.get(column)
            ends[place] = max(value, found[1]) if isinstance(found, tuple) else value
            if isinstance(found, tuple):
                axes.plot(found, (place, place), color="black", linewidth=1.2, marker="|")
            axes.text(ends[place], place, f"  {value:.2f}", va="center", fontsize="small")
        axes.set(xlabel=label, xlim=(0, 1.18 * max(ends, default=1) or 1))
    panels[1].axvline(1, color="black", linewidth=0.8, linestyle=":")
    panels[0].invert_yaxis()
    if different := differences(runs):
        facts = ", ".join(line.split(":")[0] for line in different)
        out.suptitle(f"not comparable in every respect: {facts}", color="#a50f15", fontsize="small")
    return out
