from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specdraft.types import DraftBatch


class ToyHead:
    """Frozen projection with an optional reduced vocabulary and soft cap."""

    def __init__(self, weight: Tensor, token_ids: Tensor | None = None, softcap: float | None = None) -> None:
        self.full = weight
        self.token_ids = token_ids
        self.weight = weight if token_ids is None else weight[token_ids]
        self.softcap = softcap

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = torch.nn.functional.linear(hidden, self.weight)
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def to_rows(self, ids: Tensor) -> Tensor:
        if self.token_ids is None:
            return ids
        table = torch.full((self.full.shape[0],), -1)
        table[self.token_ids] = torch.arange(len(self.token_ids))
        return table[ids]

    def to_ids(self, rows: Tensor) -> Tensor:
        return rows if self.token_ids is None else self.token_ids[rows]


@pytest.fixture
def toy_head():
    return ToyHead


def packed(spec: list[list[str]], vocab: int = 50, seed: int = 0) -> DraftBatch:
    """Rows of documents, each a string of u (user) and a (assistant) tokens; rows are padded to the longest."""
    length = max(sum(map(len, row)) for row in spec)
    shape = (len(spec), length)
    ids = torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))
    mask = torch.zeros(shape, dtype=torch.bool)
    documents, positions = torch.full(shape, -1), torch.zeros(shape, dtype=torch.int64)
    for n, row in enumerate(spec):
        start = 0
        for d, text in enumerate(row):
            for i, who in enumerate(text):
                mask[n, start + i], documents[n, start + i], positions[n, start + i] = who == "a", d, i
            start += len(text)
    return DraftBatch(ids, mask, documents, positions)


@pytest.fixture
def make_batch():
    return packed


@pytest.fixture
def batch():
    """Packed, multi-turn, padded; document ends and starts both inside an assistant turn."""
    return packed([["uuaaaauuaaaaaaa", "aaaauaa", "ua"], ["uaaaaaaaaaaaa"], ["uuuu", "uuua"]])
