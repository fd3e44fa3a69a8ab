"""Run the target over tokenised rows and store what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from specdraft.data.feature_shards import ShardPlan
from specdraft.data.feature_store import FeatureStore
from specdraft.data.tokens import TokenisedRows
from specdraft.progress import Progress

_PROBE_TOKENS = 16


@torch.no_grad()
def extract(
    target: Any, rows: TokenisedRows, store: FeatureStore, batch_tokens: int, *, rank: int = 0, world_size: int = 1
) -> None:
    """Make this rank's share of the shards that are missing.

    Batches are formed within a shard, so that a shard holds the same bytes whichever rank or run makes it.

    Args:
        target: The frozen target.
        rows: All rows of the split.
        store: Where they go.
        batch_tokens: Tokens per batch, padding included.
        rank: Rank of this process.
        world_size: Number of processes.

    Raises:
        ValueError: If the target computes a value that is not finite, naming the row.
        OSError: If the disk is full.
    """
    # by number, not by place in what is missing: ranks that start apart must not see different shares
    mine = [plan for plan in store.pending() if plan.number % world_size == rank]
    total = sum(len(plan.rows) for plan in store.plans if plan.number % world_size == rank)
    done = total - sum(len(plan.rows) for plan in mine)
    with Progress(total, done, name="features", shown=rank == 0) as bar:
        for plan in mine:
            tensors, dtype = _shard(target, rows, store, plan, batch_tokens, bar)
            store.write(plan, tensors, dtype)


@torch.no_grad()
def matches(target: Any, rows: TokenisedRows, store: FeatureStore) -> bool:
    """Whether what is freshly extracted of the start of a row equals what is stored, within rounding.

    Where last hidden states are stored they are compared, too: layers above the last tap change nothing else.
    """
    row = store.finished_row()
    if row is None:
        return True
    tokens = rows.tokens(row)[:_PROBE_TOKENS]
    fresh = _forward(target, [tokens], "last_hidden" in store.columns)
    features, hidden = store.open(partial=True).read(row)
    # token by token: the first one carries activations so large that they would hide all others in one norm
    same = bool(_errors(fresh["features"], features).max() <= store.format.tolerance)
    if hidden is not None:
        # rounding in all layers adds up here and may be large for a single token; other weights show in most of them
        same &= bool(_errors(fresh["last_hidden"], hidden).median() <= store.format.tolerance)
    return same


def _errors(fresh: Tensor, stored: Tensor) -> Tensor:
    """Relative error of each token ``[n]``: ``fresh`` is ``[1, n, W]``, ``stored`` ``[l, W]`` of a row of l >= n."""
    new = fresh[0].float().cpu()
    return (new - stored[: len(new)].float()).norm(dim=-1) / new.norm(dim=-1).clamp_min(1e-6)


def _shard(
    target: Any, rows: TokenisedRows, store: FeatureStore, plan: ShardPlan, batch_tokens: int, bar: Progress
) -> tuple[dict[str, Tensor], torch.dtype]:
    """Tensors of a shard, and the type that the target computed in."""
    taps, hidden = len(store.wanted.taps), "last_hidden" in store.columns
    out = {name: torch.empty(plan.tokens, width, dtype=dtype) for name, (dtype, width) in store.columns.items()}
    dtype, at = torch.float32, 0
    for batch in _batches(plan.rows, store.lengths, batch_tokens):
        values = _forward(target, [rows.tokens(row) for row in batch], hidden)
        dtype = values["features"].dtype
        for place, row in enumerate(batch):
            length = store.lengths[row]
            for name, value in values.items():
                if not torch.isfinite(value[place, :length]).all():
                    raise ValueError(f"the target computed {name} that are not finite for row {rows.ids[row]!r}")
            stored = store.format.encode(values["features"][place, :length], taps)
            if hidden:
                stored["last_hidden"] = values["last_hidden"][place, :length]
            for name, value in stored.items():
                out[name][at : at + length] = value  # rounds where the types differ
            at += length
        bar.update(len(batch))
    return out, dtype


def _batches(order: list[int], lengths: Any, batch_tokens: int) -> Iterator[list[int]]:
    """Consecutive rows of ``order`` (longest first) whose padded batch stays within ``batch_tokens``."""
    at = 0
    while at < len(order):
        count = max(1, batch_tokens // max(1, lengths[order[at]]))
        yield order[at : at + count]
        at += count


def _forward(target: Any, tokens: list[Tensor], last_hidden: bool) -> dict[str, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    lengths = torch.tensor([len(row) for row in tokens])
    positions = torch.arange(ids.shape[1]).expand_as(ids).contiguous()
    documents = torch.where(positions < lengths[:, None], 0, -1)
    device = target.device
    out = target.features(ids.to(device), positions.to(device), documents.to(device), last_hidden=last_hidden)
    return {"features": out.features, "last_hidden": out.hidden} if last_hidden else {"features": out.features}
