"""One optimiser step over all accumulated batches and ranks: global loss, global gradients, steps that are skipped."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from specdraft.types import BlockBatch, DraftBatch

SUMS = ("numerator", "denominator", "hits", "supervised", "anchors", "tokens")


class NonFiniteLossError(RuntimeError):
    """Training met a loss or gradient that is not a number; nothing of that step reached the weights."""


class StepSums:
    """Sums over the batches and ranks of an optimiser step, and what becomes of its gradients.

    Every batch adds the *numerator* of its loss to the gradients. At the end of the step the sums of all accumulated
    batches are pooled over the ranks in one reduction and the gradients divided by the global denominator, so that
    neither the number of ranks nor uneven batches change the step. All ranks see the same sums and the same gradient
    norm, and so agree whether the step is skipped: where nothing is supervised on any rank or, up to some times in a
    row, where loss or gradient is not finite. A skipped step touches neither weights nor optimiser state.

    Args:
        skip_non_finite: Steps in a row that may be skipped because loss or gradient is not finite.

    Attributes:
        last: Pooled sums of the last step by name, see ``SUMS``; empty before the first.
        skipped: Steps skipped so far.

    Raises:
        ValueError: If ``skip_non_finite`` is below 0.
    """

    def __init__(self, skip_non_finite: int = 0) -> None:
        if skip_non_finite < 0:
            raise ValueError(f"skip_non_finite must be at least 0, got {skip_non_finite}")
        self.skip_non_finite = skip_non_finite
        self.last: dict[str, Tensor] = {}
        self.skipped = 0
        self._in_a_row = 0
        self._pending: Tensor | None = None

    def add(self, numerator: Tensor, denominator: Tensor, hits: Tensor, blocks: BlockBatch, batch: DraftBatch) -> None:
        """Add a batch of this rank.

        Args:
            numerator: Scalar whose gradients are accumulated.
            denominator: Scalar.
            hits: ``[N, A, B]`` bool, slots that predict their label.
            blocks: The blocks.
            batch: What they were cut from.
        """
        counts = ((hits & blocks.supervised).sum(), blocks.supervised.sum(), blocks.valid.sum())
        values = (numerator, denominator, *counts, (batch.document_ids >= 0).sum())
        dtype = torch.float32 if numerator.device.type == "mps" else torch.float64
        sums = torch.stack([value.detach().to(dtype) for value in values])
        self._pending = sums if self._pending is None else self._pending + sums

    def finish(self, optimizer: Optimizer, module: LightningModule) -> None:
        """Pool the sums, divide the gradients by the global denominator or drop them, and log the step.

        Args:
            optimizer: Holds the parameters.
            module: Logs; its trainer knows the ranks.

        Raises:
            NonFiniteLossError: If loss or gradient is not finite and no further step may be skipped.
        """
        assert self._pending is not None
        trainer, pending, self._pending = module.trainer, self._pending, None
        pooled: Tensor = trainer.strategy.reduce(pending, reduce_op="sum")  # type: ignore[assignment]
        self.last = dict(zip(SUMS, pooled, strict=True))
        denominator = self.last["denominator"]
        # Lightning divided each loss by the accumulation steps and the strategy averaged over ranks: undo both
        scale = (trainer.accumulate_grad_batches * trainer.world_size / denominator.clamp(min=1e-12)).float()
        gradients = own_gradients(optimizer)
        if gradients:
            torch._foreach_mul_(gradients, scale)
        norm = gradient_norm(gradients, trainer, scale.device)
        # the one question to the device
        empty, finite = torch.stack([denominator == 0, (norm + self.last["numerator"]).isfinite()]).tolist()
        if empty or not finite:
            self._skip(optimizer, trainer, empty, norm)
        else:
            self._in_a_row = 0
        self._log(module, norm, bool(empty))

    def _skip(self, optimizer: Optimizer, trainer: Trainer, empty: bool, norm: Tensor) -> None:
        # a loss scale starts too large and finds its size by such steps
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        self._in_a_row += not empty and not scaled
        if self._in_a_row > self.skip_non_finite:
            raise NonFiniteLossError(
                f"loss or gradient is not finite at step {trainer.global_step} (gradient norm {float(norm)}); the "
                "weights still hold the previous step. Lower the learning rate, set gradient_clip_val, resume from the "
                f"last checkpoint, or allow more than {self.skip_non_finite} such steps in a row (skip_non_finite)"
            )
        self.skipped += 1
        optimizer.zero_grad(set_to_none=True)  # optimisers leave parameters without a gradient alone

    def _log(self, module: LightningModule, norm: Tensor, empty: bool) -> None:
        sums = self.last
        module.log("train/grad_norm", norm)
        module.log("train/supervised_slots", sums["supervised"].float())
        module.log("train/skipped_steps", float(self.skipped))
        if not empty:
            module.log("train/loss", (sums["numerator"] / sums["denominator"]).float(), prog_bar=True)
            module.log("train/accuracy", (sums["hits"] / sums["supervised"].clamp(min=1)).float())


def check_scaling(optimizer: Optimizer, trainer: Trainer) -> None:
    """Refuse an optimiser that undoes the scale of a 16-bit loss inside its own step.

    Where no loss is scaled (bf16-mixed), a fused optimiser is told so: Lightning would refuse to clip its gradients.

    Raises:
        ValueError: If it is one; gradients could neither be divided nor clipped before its step.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return
    if getattr(trainer.precision_plugin, "scaler", None) is None:
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    else:
        raise ValueError(
            f"a fused {type(optimizer).__name__} does not go with trainer.precision {trainer.precision}: it scales "
            "gradients inside of its step. Set fused: false, or train with trainer.precision: bf16-mixed"
        )


def own_gradients(optimizer: Optimizer) -> list[Tensor]:
    """Gradients of all parameters, of sharded ones this rank's shards; writing to them changes the gradients."""
    found = (p.grad for group in optimizer.param_groups for p in group["params"])
    return [g.to_local() if isinstance(g, DTensor) else g for g in found if g is not None]


def gradient_norm(gradients: list[Tensor], trainer: Trainer, device: torch.device) -> Tensor:
    """Norm over all parameters, scalar float32, the same on every rank.

    Args:
        gradients: What :func:`own_gradients` found.
        trainer: Its strategy knows whether they are shards.
        device: Where the norm is wanted.
    """
    norm = nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
    norm = norm.to(device, torch.float32)
    if isinstance(trainer.strategy, ModelParallelStrategy):
        norm = trainer.strategy.reduce(norm.square(), reduce_op="sum").sqrt()
    return norm
