"""Training that SIGKILL ends at random moments, resumed each time; run with a config and a folder.

A process apart from the tests: one that has run a backward pass cannot be forked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from kills import kill_at_random

from specdraft.checkpoints.lightning_file import load_content
from specdraft.cli import main as specdraft  # imported before the forks, so that kills fall into the training

LAST = "runs/tiny/v/checkpoints/last.ckpt"


def digests(value: Any, name: str = "") -> dict[str, str]:
    """Every tensor and number of nested containers, by its place."""
    if isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: found for inner, part in pairs for key, found in digests(part, f"{name}/{inner}").items()}
    if isinstance(value, torch.Tensor):
        return {name: hashlib.sha256(value.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()}
    return {name: repr(value)}


def main() -> None:
    config, folder = sys.argv[1:]
    sys.argv[1:] = []
    torch.set_num_threads(1)

    def work(place: Path) -> None:
        os.chdir(place)
        resume = ["--ckpt_path", LAST] if Path(LAST).exists() else []
        if not resume:  # killed before the first checkpoint: the run begins anew
            shutil.rmtree("runs", ignore_errors=True)
        specdraft(["fit", "--config", config, "--trainer.logger.init_args.save_dir=runs", *resume])

    def result(place: Path) -> dict[str, str]:
        content = load_content(place / LAST)
        kept = ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch")
        return digests({name: content[name] for name in kept})

    def loads(place: Path) -> None:
        if (place / LAST).exists():
            load_content(place / LAST)

    print(kill_at_random(Path(folder), work, result, loads))


if __name__ == "__main__":
    main()
