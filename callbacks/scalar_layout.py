"""Charts that lay the runs of an experiment over each other."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from specdraft.callbacks.writer import tensorboard_writer

# group to chart to tags; a tag is a regular expression, matched from the start
CHARTS: dict[str, dict[str, list[str]]] = {
    "MAT": {
        "decoded (decode/mat)": ["decode/mat$"],
        "teacher-forced (val/mat)": ["val/mat$"],
        "decoded and teacher-forced": ["decode/mat$", "val/mat$"],
        "decoded, by family": ["decode/mat_family/"],
    },
    "Acceptance": {
        "by position, decoded": ["decode/accept_at/"],
        "survival, decoded": ["decode/survival_at/"],
        "by position, teacher-forced": ["val/accept_at/"],
        "outputs equal to AR": ["decode/lossless$"],
    },
    "Throughput": {
        "tokens/s, with AR beside": ["decode/tokens_per_second$", "decode/ar_tokens_per_second$"],
        "speed-up": ["decode/speedup$"],
        "milliseconds of a round": ["decode/round_ms/"],
    },
    "Training": {
        "loss": ["train/loss$", "val/loss$"],
        "learning rate": ["lr-"],
    },
}


class ScalarLayout(Callback):
    """Write the layout of TensorBoard's custom scalars: MAT, acceptance and tokens/s of all runs in fixed charts.

    Args:
        charts: Group to chart to tags (regular expressions); null takes those of this module.
    """

    def __init__(self, charts: dict[str, dict[str, list[str]]] | None = None) -> None:
        self.charts = charts or CHARTS
        self._written = False

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        writer = tensorboard_writer(trainer)
        if writer is None or self._written:
            return
        self._written = True
        layout: dict[str, Any] = {
            group: {name: ["Multiline", tags] for name, tags in charts.items()} for group, charts in self.charts.items()
        }
        writer.add_custom_scalars(layout)
