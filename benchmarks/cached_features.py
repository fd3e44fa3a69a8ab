"""Seconds of a training step on cached features against features extracted in every step, of the quickstart's run.

    python benchmarks/cached_features.py

Each way is measured in turns; loading the batch is in the step, filling the cache is not.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from specdraft.cli import configured

QUICKSTART = Path(__file__).parents[1] / "experiments" / "quickstart.yaml"


class Watch(Callback):
    """Losses of the steps, and seconds between their ends."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._ended = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note loss and time."""
        now = time.perf_counter()
        self.losses.append(float(outputs["loss"]))
        if batch_idx:  # the first step holds the set-up
            self.seconds.append(now - self._ended)
        self._ended = now


def train(words: list[str], steps: int) -> Watch:
    """Train a run of these options of ``fit`` for some steps, without validation."""
    seed_everything(1)
    module, data, _ = configured(words)
    watch = Watch()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        callbacks=[watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=data)
    return watch


def main() -> None:
    from measure import machine  # beside this script; not found where only `train` is imported

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=QUICKSTART)
    parser.add_argument("--rows", type=int, default=80)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    batch_steps = 5
    seconds: dict[str, list[float]] = {"OnlineFeatures": [], "CachedFeatures": []}
    with tempfile.TemporaryDirectory() as folder:
        words = ["--config", str(options.config), f"--data.init_args.max_rows={options.rows}"]
        place = "--data.init_args.features"
        for _ in range(options.turns):
            for name in seconds:
                where = [f"{place}.init_args.dir={folder}"] if name == "CachedFeatures" else []
                seconds[name] += train([*words, f"{place}={name}", *where], batch_steps).seconds
    online, cached = (statistics.median(values) for values in seconds.values())
    print(machine())
    print(f"seconds per step: {online:.3f} online, {cached:.3f} cached, {online / cached:.1f}x")


if __name__ == "__main__":
    main()
