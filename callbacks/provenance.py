"""Write down what a run was made with."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from specdraft.packing import packed_from_rows
from specdraft.scratch import write_json

FILE = "provenance.json"
PACKAGES = (
    "specdraft",
    "torch",
    "lightning",
    "torchmetrics",
    "transformers",
    "jsonargparse",
    "tensorboard",
    "datasets",
)


def provenance() -> dict[str, Any]:
    """Command line, git revision, versions and machine, as builtins."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "command": sys.argv,
        "git": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "versions": versions,
        "machine": platform.machine(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "packed_from_rows": packed_from_rows(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _cpu() -> str:
    """Model of the processor, empty where the system does not say."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _git(*words: str) -> str:
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _read(path: Path) -> dict[str, Any]:
    """What an earlier part of the run left; nothing where there is none or it is damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


class Provenance(Callback):
    """Write ``provenance.json`` (command, git revision, versions, machine) into the run folder.

    Where a checkpoint is measured (``validate``, ``test``), ``measured`` names it and the steps that it was trained. A
    run that goes on in its folder keeps under ``earlier`` what it was made with before, and says from which step on
    (``from_step``) the rest of the file holds.
    """

    def __init__(self) -> None:
        self._further: dict[str, Any] = {}
        self._before: dict[str, Any] = {}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        log_dir = trainer.log_dir
        self._before = _read(Path(log_dir) / FILE) if log_dir is not None else {}
        self._further = {}

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        step = int(checkpoint.get("global_step", 0))
        if trainer.state.fn != "fit":
            self._further = {"measured": {"path": str(trainer.ckpt_path), "step": step}}
        elif self._before:
            earlier = self._before.pop("earlier", [])
            self._further = {"from_step": step, "earlier": [*earlier, self._before]}

    # written only once the checkpoint is loaded: a resume that fails before must not cost the earlier record
    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._write(trainer)

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        log_dir = trainer.log_dir  # asked by every rank: it is broadcast
        if not trainer.is_global_zero or log_dir is None or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        folder = Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, {**provenance(), **self._further})
