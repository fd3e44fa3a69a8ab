"""What a machine that is taken away leaves."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override


class SaveOnSigterm(Callback):
    """Save where the run is when SIGTERM ends it, into the file that ``filename`` of a ``ModelCheckpoint`` names.

    Lightning ends a run behind the batch during which the signal came. Between two batches of one optimiser step
    (``accumulate_grad_batches``) nothing is saved, because checkpoints hold no gradients, nor while validation runs:
    the last checkpoint stays.
    Under SLURM's requeueing Lightning itself saves on SIGUSR1 and goes on from there, and SIGTERM is passed over.

    Args:
        filename: File of the checkpoint, ``.ckpt`` left out; the one that the run resumes from.
    """

    def __init__(self, filename: str = "last") -> None:
        self.filename = filename
        self._whole = False

    @override
    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, place: int) -> None:
        # by the place, not the count of steps: one that was skipped is over as well
        self._whole = (place + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not isinstance(exception, SIGTERMException) or not trainer.training:
            return
        own = [
            c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint) and c.filename == self.filename
        ]
        if not own or own[0].dirpath is None:
            return
        path = f"{own[0].dirpath}/{self.filename}.ckpt"  # maybe an address such as s3://...
        if self._whole:
            trainer.save_checkpoint(path)
            rank_zero_info(f"SIGTERM: saved step {trainer.global_step} to {path}; resume with --ckpt_path {path}")
        else:
            rank_zero_info(f"SIGTERM in the middle of an accumulated step: {path} stays as it was last saved")
