"""Where a callback writes what is no scalar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def tensorboard_writer(trainer: Trainer) -> SummaryWriter | None:
    """The TensorBoard writer of rank 0, if there is one."""
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                writer: SummaryWriter = logger.experiment
                return writer
    return None
