"""A row per run in TensorBoard's HParams tab, with the names of the parts as columns."""

from __future__ import annotations

import math
import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from typing_extensions import override

from specdraft.callbacks.writer import tensorboard_writer
from specdraft.objectives import Inclusion, Prediction, Weighting
from specdraft.sharding import class_name

METRICS = ("decode/mat", "val/mat", "decode/speedup", "decode/tokens_per_second")
Value = bool | int | float | str


class HParams(Callback):
    """Describe the run by its parts, read from the objects themselves, so that classes of a user show as well.

    Columns: target, drafter, drafter_layers, block_size, sample_from_anchor, corrector, train_drafter, inclusion,
    weighting, prediction, num_anchors, draft_vocab_size, optimizer, lr, batch_size, max_steps, seed. TensorBoard takes
    the metrics (``decode/mat``, ``val/mat``, ``decode/speedup``, ``decode/tokens_per_second``) from the logged scalars
    of these names, so that no value is logged twice, and none before it was measured.

    Args:
        extra: Further columns.
    """

    def __init__(self, extra: dict[str, Value] | None = None) -> None:
        self.extra = extra or {}
        self._written = False

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, pl_module)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":  # a run that only measures, such as a drafter without a corrector
            self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, module: LightningModule) -> None:
        writer = tensorboard_writer(trainer)
        if writer is None or self._written:
            return
        from torch.utils.tensorboard.summary import hparams

        self._written = True
        # the metrics' values given here are not used; SummaryWriter.add_hparams would log them in a run of its own
        file = writer._get_file_writer()  # opened at the first use
        for summary in hparams({**columns(trainer, module), **self.extra}, dict.fromkeys(METRICS, 0.0)):
            file.add_summary(summary)


def columns(trainer: Trainer, module: Any) -> dict[str, Value]:
    """The columns of a run; what it does not have, such as an optimiser in a validation, is left out.

    Args:
        trainer: The run.
        module: Its :class:`specdraft.module.DraftingModule`, built.
    """
    objective, drafter = module.objective, module.drafter
    found: dict[str, Value | None] = {
        "target": module.target.spec.name.rstrip("/").rsplit("/", 1)[-1],
        "drafter": part_name(drafter),
        "drafter_layers": getattr(drafter, "num_layers", None),
        "block_size": drafter.block_size,
        "sample_from_anchor": drafter.sample_from_anchor,
        "corrector": part_name(module.corrector),
        "train_drafter": module.train_drafter,
        "inclusion": part_name(objective.inclusion),
        "weighting": part_name(objective.weighting),
        "prediction": part_name(objective.prediction),
        "num_anchors": objective.num_anchors,
        "draft_vocab_size": module.draft_vocab_size or module.target.spec.vocab_size,
        "batch_size": getattr(trainer.datamodule, "batch_size", None),  # type: ignore[attr-defined]
    }
    if trainer.optimizers:
        group = trainer.optimizers[0].param_groups[0]
        found["optimizer"] = type(trainer.optimizers[0]).__name__
        found["lr"] = float(group.get("initial_lr", group["lr"]))
        steps = trainer.estimated_stepping_batches
        found["max_steps"] = int(steps) if math.isfinite(steps) else None  # max_time alone ends the run
    seed = os.environ.get("PL_GLOBAL_SEED")
    found["seed"] = None if seed is None else int(seed)
    return {name: value for name, value in found.items() if value is not None}


def part_name(part: Any) -> str:
    """Class of a part, in brackets its kind or the parts that it was given: ``IntraBlockUnmasking(MixedHorizon)``."""
    if isinstance(part, nn.Module):
        kind = getattr(part, "kind", None)
        return f"{class_name(part)}({kind})" if isinstance(kind, str) else class_name(part)
    inner: list[Any] = []
    for name, value in vars(part).items():
        if not name.startswith("_"):
            inner += value if isinstance(value, list | tuple) else [value]
    names = [part_name(each) for each in inner if isinstance(each, Inclusion | Weighting | Prediction)]
    return type(part).__name__ + (f"({', '.join(names)})" if names else "")
