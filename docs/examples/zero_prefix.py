"""A metric, and the callback that feeds and logs it: how often the very first draft is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override


class ZeroPrefixRate(Metric):
    """Share of the blocks of which nothing is accepted; counts are pooled, the ratio is taken at the end."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    # names of their own: a MetricCollection merges metrics whose states look alike
    zero_prefix_misses: Tensor
    zero_prefix_blocks: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("zero_prefix_misses", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("zero_prefix_blocks", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @override
    def update(self, predicted: Tensor, labels: Tensor, supervised: Tensor) -> None:
        """Add blocks: tokens ``[N, A, B]`` int64, labels of the same shape, and which slots are supervised."""
        first = supervised & (supervised.cumsum(-1) == 1)  # the first supervised slot of each block
        self.zero_prefix_misses += (first & (predicted != labels)).sum()
        self.zero_prefix_blocks += first.sum()

    @override
    def compute(self) -> Tensor:
        return self.zero_prefix_misses / self.zero_prefix_blocks.clamp(min=1)


class ZeroPrefix(Callback):
    """Log ``val/zero_prefix``."""

    def __init__(self) -> None:
        self.rate = ZeroPrefixRate()

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.rate.to(pl_module.device).reset()

    @override
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Tensor | Mapping[str, Any] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        assert isinstance(outputs, Mapping)
        self.rate.update(outputs["predicted"], outputs["labels"], outputs["supervised"])

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log("val/zero_prefix", self.rate.compute())  # every rank computes: the counts are summed over them
