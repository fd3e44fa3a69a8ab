"""Counts and ratios of accepted draft prefixes; the metric classes only hold their states."""

from __future__ import annotations

import torch
from torch import Tensor


def match_prefix(predicted: Tensor, labels: Tensor, supervised: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted prefix of teacher-forced drafts: how many leading slots predict their label.

    Args:
        predicted: ``[..., K]`` int64 proposed tokens, in the order of drafting.
        labels: ``[..., K]`` int64 tokens that the slots should predict.
        supervised: ``[..., K]`` bool, slots with a label. What follows the first false one does not count.

    Returns:
        ``accepted`` ``[...]`` and ``drafted`` ``[...]`` int64: leading matches, and leading supervised slots.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> predicted = torch.tensor([[5, 6, 7], [5, 0, 7]])
        >>> labels = torch.tensor([[5, 6, 7], [5, 6, 7]])
        >>> supervised = torch.tensor([[True, True, False], [True, True, True]])
        >>> match_prefix(predicted, labels, supervised)
        (tensor([2, 1]), tensor([2, 3]))
    """
    if not predicted.shape == labels.shape == supervised.shape:
        raise ValueError(
            f"predicted {list(predicted.shape)}, labels {list(labels.shape)} and supervised "
            f"{list(supervised.shape)} must have the same shape"
        )
    offered = supervised.long().cumprod(-1)
    accepted = (offered * (predicted == labels)).cumprod(-1)
    return accepted.sum(-1), offered.sum(-1)


def check_rounds(accepted: Tensor, drafted: Tensor | None) -> None:
    """Refuse anything but ``[R]`` integers.

    Raises:
        ValueError: Naming the tensor, its shape and its type.
    """
    for name, values in (("accepted", accepted), ("drafted", drafted)):
        if values is None:
            continue
        if values.ndim != 1 or values.shape != accepted.shape:
            raise ValueError(f"{name} must be [R], one entry per round of accepted, got shape {list(values.shape)}")
        if values.dtype.is_floating_point or values.dtype == torch.bool:
            raise ValueError(f"{name} must hold integers, got {values.dtype}")


def prefix_counts(accepted: Tensor, drafted: Tensor | None, num_drafts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sufficient statistics of :func:`prefix_ratios`; they add over rounds.

    A round without any draft (``drafted`` 0) was cut short by a limit; it counts as a round of no accepted draft.

    Args:
        accepted: ``[R]`` integer, accepted drafts of each round.
        drafted: ``[R]`` integer, drafts of each round that could have been accepted, or None for all of them.
        num_drafts: Drafts K of a full round.

    Returns:
        int64 ``offered_at`` ``[K]``: rounds that accepted k - 1 drafts and had a k-th; ``accepted_at`` ``[K]``: those
        that accepted the k-th as well; ``histogram`` ``[K + 1]`` of the accepted length.

    Raises:
        ValueError: If a tensor is not ``[R]`` or not of an integer type.
    """
    check_rounds(accepted, drafted)
    drafted = torch.full_like(accepted, num_drafts) if drafted is None else drafted
    place = torch.arange(1, num_drafts + 1, device=accepted.device)
    reached = accepted[:, None] >= place - 1
    offered_at = (reached & (drafted[:, None] >= place)).sum(0)
    accepted_at = (accepted[:, None] >= place).sum(0)
    histogram = (accepted[:, None] == torch.arange(num_drafts + 1, device=accepted.device)).sum(0)
    return offered_at, accepted_at, histogram


def prefix_ratios(offered_at: Tensor, accepted_at: Tensor, rounds: Tensor) -> tuple[Tensor, Tensor]:
    """Survival and conditional acceptance from pooled counts.

    Args:
        offered_at: ``[K]`` int64.
        accepted_at: ``[K]`` int64.
        rounds: Number of rounds.

    Returns:
        ``survival`` ``[K]``, ``S_k = P(A >= k)``, and ``acceptance`` ``[K]``, the share of the offered k-th drafts
        that were accepted; equal to ``S_k / S_{k-1}`` when every round was full. Nothing offered gives 0.
    """
    survival = accepted_at / rounds.clamp_min(1)
    return survival, accepted_at / offered_at.clamp_min(1)


def mean_accepted(accepted_sum: Tensor, rounds: Tensor) -> tuple[Tensor, Tensor]:
    """Mean accepted tokens per round, ``(mat, mat_drafts)``: with and without the correction or bonus token.

    Both are pooled, sum over rounds / rounds, and both are 0 without rounds (a mat below 1 is otherwise impossible).
    """
    drafts = accepted_sum / rounds.clamp_min(1)
    return torch.where(rounds > 0, drafts + 1, torch.zeros_like(drafts)), drafts
