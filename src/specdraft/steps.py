"""Small helpers of the training step."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor


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
