"""What runs left in their folders, and whether it may be set side by side."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from specdraft.bootstrap import Counts, read_counts

# options of SpeculativeDecoding that decide what a decoded value means
_MEASUREMENT = ("num_prompts", "max_new_tokens", "temperature", "top_p", "top_k", "concurrency", "rule")
_MACHINE = ("machine", "cpu", "threads", "packed_from_rows", "devices")
_LIBRARIES = ("torch", "transformers")


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
    split = _split(place)
    # a validation inside an epoch is logged one step before the trainer's own count, which names the file
    counts = read_counts(place, int(chosen.step) + 1, split)
    config, provenance = read_config(place), read_provenance(place, int(chosen.step))
    step = int((provenance.get("measured") or {}).get("step", chosen.step))  # `validate` and `test` count from 0
    facts = _facts(config, provenance, split, counts)
    return Run(place.name, step, values, facts, counts, place, _corrector(config))


def _split(place: Path) -> str:
    """Which rows were decoded: ``test`` where only such a file is left, else ``val``."""
    names = (re.fullmatch(r"(val|test)-\d+", path.stem) for path in (place / "decoded").glob("*.csv"))
    kept = {name[1] for name in names if name}  # a second way of decoding has a name before it
    return "test" if kept == {"test"} else "val"


def read_config(place: Path) -> dict[str, Any]:
    """What the run was configured with, empty where it did not keep it."""
    path = place / "config.yaml"
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def read_provenance(place: Path, step: int | None = None) -> dict[str, Any]:
    """What the run left of command, revision and machine, empty where it did not keep it.

    Args:
        place: Folder of the run.
        step: Step of a logged value, for a run that went on elsewhere behind that step; None takes the last.

    Raises:
        ValueError: If the file is damaged, naming it.
    """
    path = place / "provenance.json"
    if not path.is_file():
        return {}
    try:
        last: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it, and the run counts as one of unknown origin"
        ) from error
    # a validation right at the step of the checkpoint was the last one before
    parts = [*last.get("earlier", []), last]
    known = [part for part in parts if step is None or part.get("from_step", -1) < step]
    return known[-1] if known else parts[0]


def _corrector(config: dict[str, Any]) -> str:
    found = (config.get("model") or {}).get("corrector") or ""
    return str(found.get("class_path") or "") if isinstance(found, dict) else str(found)


def _facts(config: dict[str, Any], provenance: dict[str, Any], split: str, counts: Counts) -> dict[str, Any]:
    """Target, held-out data, how it was decoded, and the machine; what a run does not tell is left out."""
    facts: dict[str, Any] = {}
    if config:
        facts["target"] = config["model"]["target"]["path"]
        facts["target dtype"] = config["model"]["target"].get("dtype")
        data, trainer = config["data"]["init_args"], config["trainer"] or {}
        facts["precision"] = trainer.get("precision")
        facts["val_anchors"], facts["max_length"] = config["model"].get("val_anchors"), data.get("max_length")
        facts["held-out data"] = (data.get("test") if split == "test" else None) or data.get("val") or data.get("train")
        facts["families"] = data.get("families")
        callbacks = trainer.get("callbacks") or []
        for callback in [callbacks] if isinstance(callbacks, dict) else callbacks:
            options = callback.get("init_args") or {}
            # one with a name of its own logs elsewhere than decode/
            if callback["class_path"].endswith("SpeculativeDecoding") and options.get("name", "decode") == "decode":
                facts |= {name: options.get(name) for name in _MEASUREMENT}
    facts |= {name: provenance[name] for name in _MACHINE if name in provenance}
    versions = provenance.get("versions") or {}
    facts |= {name: versions[name] for name in _LIBRARIES if name in versions}
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
        lacking = [run.name for run in runs if name not in run.made_with and run.name not in silent]
        if lacking:
            out.append(f"{name}: not known of {', '.join(lacking)}")
        groups: dict[str, list[str]] = {}
        for run in runs:
            if name in run.made_with:
                groups.setdefault(json.dumps(run.made_with[name], default=str), []).append(run.name)
        if len(groups) > 1:
            out.append(f"{name}: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in groups.items()))
    return out


def shared_facts(runs: list[Run]) -> str:
    """How all of the runs were measured, in one line; empty where they kept no configuration."""
    first = runs[0].made_with
    same = {name for name in first if all(run.made_with.get(name, ...) == first[name] for run in runs)}
    said = [f"{name} {first[name]}" for name in first if name in same and first[name] not in (None, [], "")]
    return ", ".join(said)
