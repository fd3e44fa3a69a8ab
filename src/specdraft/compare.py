"""Runs side by side, from what they left in their folders."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from specdraft.bootstrap import Counts, common, interval, mat, read_counts, speedup

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
# options of SpeculativeDecoding that decide what a decoded value means
_MEASUREMENT = ("num_prompts", "max_new_tokens", "temperature", "top_p", "top_k", "concurrency", "rule")


@dataclass
class Run:
    """Values of one run at the step where it is compared.

    Attributes:
        name: Folder of the run, as short as it is unique.
        step: Training step of the values.
        values: Logged value by tag.
        made_with: Facts that two runs must share for their decoded values to be comparable.
        counts: What became of every prompt, where the run kept it.
        folder: Where the run lies.
        corrector: Class of its corrector, empty where the run does not tell.
    """

    name: str
    step: int
    values: dict[str, float]
    made_with: dict[str, Any] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
    folder: Path = Path()
    corrector: str = ""


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
    if warnings := differences(found):
        text = "\nNOT comparable in every column:\n" + "\n".join(f"- {line}" for line in warnings)
        print(text, file=sys.stdout if format == "md" else sys.stderr)  # what a program reads stays clean
    if plot:
        figure(found, gains).savefig(plot, dpi=150)


def read_runs(folders: list[str], at: Literal["best", "last"] = "best") -> list[Run]:
    """Read every run below the folders, sorted by folder.

    Args:
        folders: Folders to search.
        at: Which step's values to take.

    Raises:
        FileNotFoundError: If a folder does not exist or there is no run with a decoded MAT.
    """
    places: set[Path] = set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder {folder}; name the save_dir of the runs, such as runs/")
        places |= {path.parent for path in folder.rglob("events.out.tfevents.*")}
    out = [run for place in sorted(places) if (run := _read(place, at)) is not None]
    for run, name in zip(out, unique_names([run.folder for run in out]), strict=True):
        run.name = name
    if not out:
        raise FileNotFoundError(
            f"no run with decode/mat below {', '.join(folders)}; fit with SpeculativeDecoding first"
        )
    return out


def unique_names(folders: Sequence[Path]) -> list[str]:
    """The last two parts of every path, or as many more as tell all of them apart."""
    parts = [folder.absolute().parts for folder in folders]
    for count in range(2, max(map(len, parts), default=2)):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _read(place: Path, at: str) -> Run | None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(place), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    if "decode/mat" not in tags:
        return None
    mats = events.Scalars("decode/mat")
    chosen = mats[-1] if at == "last" else max(mats, key=lambda event: event.value)
    values = {}
    for tag in tags:
        if tag.startswith(("decode/", "val/")):
            same = [event.value for event in events.Scalars(tag) if event.step == chosen.step]
            if same:
                values[tag] = float(same[-1])
    # a validation inside an epoch is logged one step before the trainer's own count, which names the file
    counts = read_counts(place, int(chosen.step) + 1)
    config = _config(place)
    return Run(place.name, int(chosen.step), values, _facts(place, config, counts), counts, place, _corrector(config))


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


def _config(place: Path) -> dict[str, Any]:
    """What the run was configured with, empty where it did not keep it."""
    path = place / "config.yaml"
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def _corrector(config: dict[str, Any]) -> str:
    found = (config.get("model") or {}).get("corrector") or ""
    return str(found.get("class_path") or "") if isinstance(found, dict) else str(found)


def _facts(place: Path, config: dict[str, Any], counts: Counts) -> dict[str, Any]:
    """Target, held-out data, how it was decoded, and the machine; what a run does not tell is left out."""
    facts: dict[str, Any] = {}
    if config:
        facts["target"] = config["model"]["target"]["path"]
        data = config["data"]["init_args"]
        facts["held-out data"] = data.get("val") or data.get("train")
        facts["families"] = data.get("families")
        for callback in (config["trainer"] or {}).get("callbacks") or []:
            options = callback.get("init_args") or {}
            # one with a name of its own logs elsewhere than decode/
            if callback["class_path"].endswith("SpeculativeDecoding") and options.get("name", "decode") == "decode":
                facts |= {name: options.get(name) for name in _MEASUREMENT}
    if (place / "provenance.json").is_file():
        provenance = json.loads((place / "provenance.json").read_text(encoding="utf-8"))
        facts |= {name: provenance[name] for name in ("machine", "cpu", "threads", "devices") if name in provenance}
    if counts:  # the same file may have changed: what was decoded is known by its tokens
        digest = hashlib.sha256(" ".join(sorted(counts)).encode()).hexdigest()[:8]
        facts["decoded prompts"] = f"{len(counts)} ({digest})"
    return facts


def differences(runs: list[Run]) -> list[str]:
    """One line per fact in which the runs differ, naming the values, or that some do not tell."""
    out = []
    silent = [run.name for run in runs if "target" not in run.made_with]
    if silent and len(runs) > 1:
        out.append(f"config.yaml: missing in {', '.join(silent)}; nobody knows what they were measured with")
    for name in sorted({name for run in runs for name in run.made_with}):
        groups: dict[str, list[str]] = {}
        for run in runs:
            if name in run.made_with:
                groups.setdefault(json.dumps(run.made_with[name], default=str), []).append(run.name)
        if len(groups) > 1:
            out.append(f"{name}: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in groups.items()))
    return out


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
