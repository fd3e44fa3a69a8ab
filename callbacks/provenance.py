"""Write down what a run was made with."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from specdraft.scratch import write_json

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


class Provenance(Callback):
    """Write ``provenance.json`` (command, git revision, versions, machine) into the run folder.

    Where a checkpoint is measured (``validate``, ``test``), ``measured`` names it and the steps that it was trained.
    """

    def __init__(self) -> None:
        self._measured: dict[str, Any] = {}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._measured = {}
        self._write(trainer)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != "fit":
            self._measured = {"path": str(trainer.ckpt_path), "step": int(checkpoint.get("global_step", 0))}
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        log_dir = trainer.log_dir  # asked by every rank: it is broadcast
        if not trainer.is_global_zero or log_dir is None or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        folder = Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        measured = {"measured": self._measured} if self._measured else {}
        write_json(folder / "provenance.json", {**provenance(), **measured})
