"""Choice of anchors: random ones for training, evenly spread ones for validation."""

from __future__ import annotations

import torch
from torch import Tensor

from specdraft.types import DraftBatch


def sample_anchors(
    batch: DraftBatch, count: int, *, generator: torch.Generator | None, min_labels: int = 1, budget: int | None = None
) -> tuple[Tensor, Tensor]:
    """Draw anchors uniformly without replacement, up to ``count`` from every document (DFlash, arXiv 2602.06036).

    The count holds per document, so that packing several conversations into a row changes nothing. The budget holds for
    the batch: as many are drawn uniformly from all documents together, none of which gives more than ``count``.

    Args:
        batch: Tokenised conversations.
        count: Most anchors of one document, at least 1.
        generator: Source of randomness, on any device; None for the global one.
        min_labels: Labels that have to follow an anchor without a gap.
        budget: Most anchors of the whole batch, at least 1; None for no limit.

    Returns:
        Anchors ``[N, A]`` int64 in ascending order and ``[N, A]`` bool, false for filler (index 0). A is the largest
        number drawn in any row and at least 1.

    Raises:
        ValueError: If ``count``, ``min_labels`` or ``budget`` is below 1.
    """
    _check_count("count", count)
    _check_count("budget", 1 if budget is None else budget)
    shape, device = batch.input_ids.shape, batch.input_ids.device
    source = device if generator is None else generator.device
    keys = torch.randint(2**62, shape, generator=generator, device=source).to(device)
    candidates = anchor_candidates(batch, min_labels)
    rank, _ = _rank_in_document(candidates, batch.document_ids, keys)
    chosen = candidates & (rank < count)
    if budget is not None and budget < chosen.numel():
        order = keys.masked_fill(~chosen, torch.iinfo(torch.int64).max).flatten()
        first = torch.zeros_like(chosen).flatten().index_fill_(0, order.argsort()[:budget], True)
        chosen = chosen & first.view_as(chosen)
    return _as_anchors(chosen)


def all_anchors(batch: DraftBatch, limit: int) -> tuple[Tensor, Tensor]:
    """Every possible anchor, thinned evenly to at most ``limit`` per document; always the same ones.

    Args:
        batch: Tokenised conversations.
        limit: Most anchors of one document, at least 1.

    Returns:
        The same pair as :func:`sample_anchors`.

    Raises:
        ValueError: If ``limit`` is below 1.
    """
    _check_count("limit", limit)
    candidates = anchor_candidates(batch, 1)
    where = torch.arange(candidates.shape[1], device=candidates.device).expand_as(candidates)
    rank, size = _rank_in_document(candidates, batch.document_ids, where)
    # floor(rank * limit / size) steps through 0..limit-1: keep the candidates at which it steps
    keep = (rank * limit).div(size, rounding_mode="floor") != ((rank - 1) * limit).div(size, rounding_mode="floor")
    return _as_anchors(candidates & keep)


def anchor_candidates(batch: DraftBatch, min_labels: int) -> Tensor:
    """Positions that may be an anchor.

    Args:
        batch: Tokenised conversations.
        min_labels: Labels that have to follow without a gap, at least 1.

    Returns:
        ``[N, L]`` bool: the token and the next ``min_labels`` were written by the assistant in one document.

    Raises:
        ValueError: If ``min_labels`` is below 1.
    """
    _check_count("min_labels", min_labels)
    candidates = batch.loss_mask & (batch.document_ids >= 0)
    for step in range(1, min_labels + 1):
        follows = torch.zeros_like(candidates)
        same = batch.document_ids[:, :-step] == batch.document_ids[:, step:]
        follows[:, :-step] = batch.loss_mask[:, step:] & same
        candidates = candidates & follows
    return candidates


def _rank_in_document(candidates: Tensor, documents: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Rank of each candidate by key among those of its document, and their number; both ``[N, L]`` int64."""
    documents = documents.masked_fill(~candidates, torch.iinfo(torch.int64).max)  # the rest is one group at the end
    order = keys.argsort(-1)
    order = order.gather(1, documents.gather(1, order).argsort(dim=-1, stable=True))
    documents = documents.gather(1, order)
    starts = torch.ones_like(candidates)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    where = torch.arange(order.shape[1], device=order.device).expand_as(order)
    rank = where - torch.where(starts, where, 0).cummax(-1).values
    group = starts.cumsum(-1) - 1
    size = torch.zeros_like(order).scatter_add(1, group, torch.ones_like(order)).gather(1, group)
    return torch.empty_like(order).scatter(1, order, rank), torch.empty_like(order).scatter(1, order, size)


def _as_anchors(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Turn ``[N, L]`` flags into sorted indices ``[N, A]`` and their validity."""
    length = chosen.shape[1]
    most = max(1, int(chosen.sum(-1).max())) if chosen.numel() else 1
    where = torch.arange(length, device=chosen.device).expand_as(chosen)
    anchors = torch.where(chosen, where, length).sort(-1).values[:, :most]
    valid = anchors < length
    return anchors.masked_fill(~valid, 0), valid


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
