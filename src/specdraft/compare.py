"""Runs side by side, from their TensorBoard logs alone."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

COLUMNS = {
    "MAT": "decode/mat",
    "val MAT": "val/mat",
    "tokens/s": "decode/tokens_per_second",
    "AR tokens/s": "decode/ar_tokens_per_second",
    "speed-up": "decode/speedup",
    "draft ms": "decode/round_ms/draft",
    "correct ms": "decode/round_ms/correct",
    "verify ms": "decode/round_ms/verify",
    "lossless": "decode/lossless",
}
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
    """

    name: str
    step: int
    values: dict[str, float]
    made_with: dict[str, Any] = field(default_factory=dict)


def compare(
    runs: str | list[str],
    at: Literal["best", "last"] = "best",
    format: Literal["md", "csv", "json"] = "md",
    plot: str | None = None,
) -> None:
    """Compare runs by what they logged: MAT, acceptance per position, tokens/s and the parts of a round.

    Args:
        runs: Folders to search for runs, such as ``runs/``.
        at: Take the values where ``decode/mat`` is largest, or the last ones.
        format: Table as Markdown, CSV or JSON.
        plot: PNG to write: MAT and speed-up per run.

    Raises:
        FileNotFoundError: If a folder does not exist or holds no run that decoded.
    """
    found = read_runs([runs] if isinstance(runs, str) else runs, at)
    print(table(found, format))
    warnings = differences(found)
    if warnings and format == "md":
        print("\nNOT comparable in every column:\n" + "\n".join(f"- {line}" for line in warnings))
    if plot:
        figure(found).savefig(plot, dpi=150)


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
    if not out:
        raise FileNotFoundError(
            f"no run with decode/mat below {', '.join(folders)}; fit with SpeculativeDecoding first"
        )
    return out


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
    return Run("/".join(place.parts[-2:]), int(chosen.step), values, _facts(place))


def _facts(place: Path) -> dict[str, Any]:
    """Target, held-out data, how it was decoded, and the machine; what a run does not tell is left out."""
    facts: dict[str, Any] = {}
    if (place / "config.yaml").is_file():
        config = yaml.safe_load((place / "config.yaml").read_text(encoding="utf-8"))
        facts["target"] = config["model"]["target"]["path"]
        data = config["data"]["init_args"]
        facts["held-out data"] = data.get("val") or data.get("train")
        facts["families"] = data.get("families")
        for callback in (config["trainer"] or {}).get("callbacks") or []:
            if callback["class_path"].endswith("SpeculativeDecoding"):
                facts |= {name: callback["init_args"].get(name) for name in _MEASUREMENT}
    if (place / "provenance.json").is_file():
        provenance = json.loads((place / "provenance.json").read_text(encoding="utf-8"))
        facts |= {name: provenance[name] for name in ("machine", "threads", "devices") if name in provenance}
    return facts


def differences(runs: list[Run]) -> list[str]:
    """One line per fact in which the runs differ, naming the values."""
    out = []
    for name in sorted({name for run in runs for name in run.made_with}):
        groups: dict[str, list[str]] = {}
        for run in runs:
            if name in run.made_with:
                groups.setdefault(json.dumps(run.made_with[name], default=str), []).append(run.name)
        if len(groups) > 1:
            out.append(f"{name}: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in groups.items()))
    return out


def table(runs: list[Run], format: Literal["md", "csv", "json"] = "md") -> str:
    """The comparison as text; a value that a run did not log is empty."""
    positions = sorted(
        {int(tag.rsplit("/", 1)[1]) for run in runs for tag in run.values if tag.startswith("decode/accept_at/")}
    )
    columns = COLUMNS | {f"a_{k}": f"decode/accept_at/{k}" for k in positions}
    if format == "json":
        whole = [{"run": run.name, "step": run.step, "made_with": run.made_with, **run.values} for run in runs]
        return json.dumps(whole, indent=1, default=str)
    head = ["run", "step", *columns]
    rows = [
        [run.name, str(run.step), *(f"{run.values[tag]:.3f}" if tag in run.values else "" for tag in columns.values())]
        for run in runs
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


def figure(runs: list[Run]) -> Any:
    """Bars of MAT and speed-up, one per run.

    Raises:
        ImportError: If matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("--plot needs matplotlib: pip install 'specdraft[plot]'") from error
    out = Figure(figsize=(8, 0.5 * len(runs) + 1.5), layout="constrained")
    left, right = out.subplots(1, 2, sharey=True)
    names = [run.name for run in runs]
    left.barh(names, [run.values["decode/mat"] for run in runs], color="#08519c")
    left.set(xlabel="MAT (bonus counted)")
    right.barh(names, [run.values.get("decode/speedup", 0.0) for run in runs], color="#9ecae1")
    right.axvline(1, color="black", linewidth=0.8)
    right.set(xlabel="speed-up over lean AR")
    left.invert_yaxis()
    return out
