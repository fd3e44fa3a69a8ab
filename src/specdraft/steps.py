"""Small helpers of the training step."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer


class NonFiniteLossError(RuntimeError):
    """Training met a loss or gradient that is not a number; nothing of that step reached the weights."""


def is_plain(value: Any) -> bool:
    """Whether a value holds builtins only."""
    if isinstance(value, dict):
        return all(is_plain(v) for v in value.values())
    if isinstance(value, list | tuple):
        return all(is_plain(v) for v in value)
    return value is None or type(value) in (str, int, float, bool)


def generator_of(device: torch.device, *where: int) -> torch.Generator:
    """A generator seeded by a few numbers, such as seed, epoch, batch and rank."""
    mixed = 0
    for value in where:
        mixed = (mixed * 1_000_003 + value + 1) % (1 << 63)
    return torch.Generator(device=device).manual_seed(mixed)


def most_frequent(counts: Tensor, size: int) -> Tensor:
    """The ``size`` most frequent tokens in rising order ``[size]``, given the count of each; says what they cover."""
    ranked = torch.sort(counts, descending=True, stable=True).indices[:size]
    covered = counts[ranked].sum() / counts.sum().clamp(min=1)
    rank_zero_info(f"draft vocabulary: {size} of {len(counts)} rows cover {covered:.2%} of the training tokens")
    return ranked.sort().values


def divide_gradients(optimizer: Optimizer, denominator: Tensor, trainer: Trainer) -> Tensor:
    """Divide the gradients of accumulated numerators by the denominator of all ranks and accumulated batches.

    Args:
        optimizer: Holds the parameters.
        denominator: This rank's sum over the accumulated batches.
        trainer: The trainer.

    Returns:
        Norm of the divided gradients.

    Raises:
        NonFiniteLossError: If it is not finite.
    """
    total = trainer.strategy.reduce(denominator, reduce_op="sum").clamp(min=1e-12)  # type: ignore[union-attr]
    # Lightning divided each loss by the accumulation steps and DDP averaged over ranks: undo both
    scale = trainer.accumulate_grad_batches * trainer.world_size / total
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    torch._foreach_mul_(gradients, scale)
    norm = nn.utils.get_total_norm(gradients)
    if not torch.isfinite(norm):
        raise NonFiniteLossError(
            f"loss or gradient is not finite at step {trainer.global_step} (gradient norm {float(norm)}); the weights "
            "still hold the previous step. Lower the learning rate, set gradient_clip_val, or resume from the "
            "last checkpoint"
        )
    return norm
