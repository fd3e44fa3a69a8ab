"""Small helpers of the training module."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def is_plain(value: Any) -> bool:
    """Whether a value holds builtins only."""
    if isinstance(value, dict):
        return all(is_plain(v) for v in value.values())
    if isinstance(value, list | tuple):
        return all(is_plain(v) for v in value)
    return value is None or type(value) in (str, int, float, bool)


def keep_plain(module: LightningModule) -> None:
    """Drop hyperparameters that are objects: a checkpoint with them could not be loaded with ``weights_only``.

    Those of a module that was built from a config are plain.
    """
    if not is_plain(dict(module.hparams)):
        module.hparams.clear()
        module._hparams_initial.clear()  # type: ignore[operator, union-attr]


def trainable(module: nn.Module, started: bool) -> list[nn.Parameter]:
    """Parameters to train.

    Args:
        module: Its parameters that need a gradient.
        started: Whether its drafter is trained, or comes from somewhere.

    Raises:
        ValueError: If there is nothing to train, or a drafter to keep that was never trained.
    """
    found = [p for p in module.parameters() if p.requires_grad]
    if not found:
        raise ValueError("nothing to train: the drafter is frozen and the corrector has no parameters")
    if not started:
        raise ValueError("train_drafter is false, but there is no trained drafter: set init_from to its checkpoint")
    return found


def copied(module: Module, memo: dict[int, Any], *shared: Any) -> Module:
    """A deep copy of a module that shares some objects with it.

    Args:
        module: What to copy.
        memo: Of :func:`copy.deepcopy`.
        shared: Objects that are not copied.
    """
    memo |= {id(each): each for each in shared}
    made = type(module).__new__(type(module))
    memo[id(module)] = made
    made.__setstate__(deepcopy(module.__getstate__(), memo))  # type: ignore[arg-type]
    return made


def most_frequent(data: Any, size: int) -> Tensor:
    """The ``size`` most frequent training tokens in rising order ``[size]``; says what they cover.

    Args:
        data: Data module, which counts each token; None if there is none.
        size: How many to take.

    Raises:
        ValueError: If there is no data module.
    """
    if data is None:
        raise ValueError("draft_vocab_size counts the training tokens: fit with a data module")
    counts: Tensor = data.token_counts()
    ranked = torch.sort(counts, descending=True, stable=True).indices[:size]
    covered = counts[ranked].sum() / counts.sum().clamp(min=1)
    rank_zero_info(f"draft vocabulary: {size} of {len(counts)} rows cover {covered:.2%} of the training tokens")
    return ranked.sort().values
