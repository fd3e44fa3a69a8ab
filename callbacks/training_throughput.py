"""How fast training runs, and how long it waits for data."""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from specdraft.data import OnlineFeatures
from specdraft.estimate.work import StepWork

COUNTS = ("tokens", "anchors", "supervised")


class Window:
    """Counts and seconds since the last report; validation, sanity checks and what lies between runs are left out."""

    def __init__(self) -> None:
        self.reset(time.perf_counter(), 0.0)

    def reset(self, now: float, waited: float) -> None:
        """Begin anew."""
        self.began, self.paused, self.waited = now, 0.0, waited
        self.steps = 0
        self.sums: dict[str, Tensor] = {}

    def add(self, sums: dict[str, Tensor]) -> None:
        """Add an optimiser step; nothing is read from the device."""
        self.steps += 1
        self.sums = {name: sums[name] + self.sums.get(name, 0) for name in COUNTS}

    def seconds(self, now: float) -> float:
        """Seconds of training so far."""
        return max(now - self.began - self.paused, 1e-9)


class TrainingThroughput(Callback):
    """Log rates of the training over all ranks, averaged over the steps between two logs.

    ``train/tokens_per_second`` (context tokens, padding left out), ``train/anchors_per_second``,
    ``train/supervised_slots_per_second``; ``train/step_ms`` of an optimiser step, of which ``train/data_ms`` were spent
    waiting for batches on this rank; with ``peak_tflops`` also ``train/mfu``, the share of the peak that the work of
    target and drafter makes up. Validation and decoding are not counted. A GPU is waited for only when a log is due.

    Args:
        peak_tflops: Peak TFLOP/s of one device in the precision of the training, such as 989 for bf16 on an H100; null
            leaves ``train/mfu`` out.

    Raises:
        ValueError: If ``peak_tflops`` is not positive.
    """

    def __init__(self, peak_tflops: float | None = None) -> None:
        if peak_tflops is not None and peak_tflops <= 0:
            raise ValueError(f"peak_tflops must be positive, got {peak_tflops}")
        self.peak_tflops = peak_tflops
        self._window = Window()
        self._pause: float | None = None
        self._work: StepWork | None = None
        self._seen: Any = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.peak_tflops is not None:
            online = isinstance(getattr(trainer.datamodule, "features", None), OnlineFeatures)  # type: ignore[attr-defined]
            self._work = StepWork.of(pl_module, online)  # type: ignore[arg-type]
        self._window.reset(time.perf_counter(), _waited(trainer))

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        sums = pl_module.step_sums.last  # type: ignore[union-attr]
        if not sums or sums is self._seen:
            return  # the batch was accumulated, the step is still to come
        self._seen = sums
        self._window.add(sums)  # type: ignore[arg-type]
        if trainer.global_step % max(trainer.log_every_n_steps, 1) == 0:  # type: ignore[attr-defined]
            self._report(trainer, pl_module, batch.input_ids.shape[1])

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause = time.perf_counter()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._pause is not None:
            self._window.paused += time.perf_counter() - self._pause
            self._pause = None

    def _report(self, trainer: Trainer, module: LightningModule, length: int) -> None:
        window = self._window
        counts = {name: float(value) for name, value in window.sums.items()}  # waits for the device
        now, waited = time.perf_counter(), _waited(trainer)
        seconds = window.seconds(now)
        names = {"tokens": "tokens", "anchors": "anchors", "supervised": "supervised_slots"}
        values = {f"train/{names[name]}_per_second": count / seconds for name, count in counts.items()}
        values["train/step_ms"] = 1e3 * seconds / window.steps
        values["train/data_ms"] = 1e3 * (waited - window.waited) / window.steps
        if self._work is not None and self.peak_tflops is not None:
            flops = self._work.flops(counts["tokens"], counts["anchors"], length)
            values["train/mfu"] = flops / seconds / (self.peak_tflops * 1e12 * trainer.world_size)
        module.log_dict({name: torch.tensor(value) for name, value in values.items()})
        window.reset(now, waited)


def _waited(trainer: Trainer) -> float:
    """Seconds that this rank has waited for batches, as far as its loader counts them."""
    return float(getattr(trainer.train_dataloader, "waited", 0.0))
