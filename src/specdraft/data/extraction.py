"""Run the target over tokenised rows and store what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from specdraft.data.feature_store import FeatureStore
from specdraft.data.tokens import TokenisedRows

_PROBE_TOKENS = 16
_PROBE_TOLERANCE = 0.05  # relative, per token; bf16 storage and products cost up to 0.015 on SmolLM2-135M


@torch.no_grad()
def extract(
    target: Any, rows: TokenisedRows, store: FeatureStore, batch_tokens: int, *, rank: int = 0, world_size: int = 1
) -> str:
    """Write the features of this rank's share of the rows.

    Rows of similar length share a batch, so that little is padded, the longest first, so that a batch too large for
    the memory fails at once.

    Args:
        target: The frozen target.
        rows: All rows of the split.
        store: Where they go.
        batch_tokens: Tokens per batch, padding included.
        rank: Rank of this process.
        world_size: Number of processes.

    Returns:
        Name of the type that the target computed in.

    Raises:
        ValueError: If the target computes a value that is not finite, naming the row.
        OSError: If the disk is full.
    """
    lengths, dtype = rows.lengths, torch.float32
    order = sorted(range(len(rows)), key=lambda i: -lengths[i])[rank::world_size]
    with tqdm(total=len(order), desc="features", unit="row", disable=rank != 0, leave=False) as bar:
        for batch in _batches(order, lengths, batch_tokens):
            values = _forward(target, [rows.tokens(i) for i in batch], store.wanted.last_hidden)
            dtype = values["features"].dtype
            for at, index in enumerate(batch):
                row = {name: value[at, : lengths[index]] for name, value in values.items()}
                for name, value in row.items():
                    if not torch.isfinite(value).all():
                        raise ValueError(f"the target computed {name} that are not finite for row {rows.ids[index]!r}")
                store.write(index, row)
            bar.update(len(batch))
    return str(dtype).removeprefix("torch.")


@torch.no_grad()
def matches(target: Any, rows: TokenisedRows, store: FeatureStore) -> bool:
    """Whether freshly extracted features of the start of a row equal the stored ones, within rounding."""
    if not len(rows):
        return True
    tokens = rows.tokens(0)[:_PROBE_TOKENS]
    fresh = _forward(target, [tokens], False)["features"][0].float().cpu()
    stored = store.open().read(0)[0][: len(tokens)].float()
    # token by token: the first one carries activations so large that they would hide all others in one norm
    errors = (fresh - stored).norm(dim=-1) / fresh.norm(dim=-1).clamp_min(1e-6)
    return bool(errors.max() <= _PROBE_TOLERANCE)


def _batches(order: list[int], lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
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
