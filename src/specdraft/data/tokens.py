"""Tokenised rows in flat arrays, and batches of them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from specdraft.types import DraftBatch


class TokenisedRows:
    """Tokens and loss masks of many rows, flat, so that a million rows are a few arrays and not a million lists."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.families: list[str] = []
        self._tokens = array("i")
        self._mask = array("b")
        self._offsets = array("q", [0])

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, name: str, family: str, tokens: Sequence[int], mask: Sequence[bool]) -> None:
        """Add one row."""
        self.ids.append(name)
        self.families.append(family)
        self._tokens.extend(tokens)
        self._mask.extend(mask)
        self._offsets.append(len(self._tokens))

    @property
    def offsets(self) -> Tensor:
        """``[rows + 1]`` int64, where each row starts in the flat arrays."""
        return torch.tensor(self._offsets, dtype=torch.int64)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [stop - start for start, stop in zip(self._offsets[:-1], self._offsets[1:], strict=True)]

    def tokens(self, index: int) -> Tensor:
        """Tokens ``[l]`` int64 of a row."""
        return torch.tensor(self._tokens[self._offsets[index] : self._offsets[index + 1]], dtype=torch.int64)

    def mask(self, index: int) -> Tensor:
        """Loss mask ``[l]`` bool of a row."""
        return torch.tensor(self._mask[self._offsets[index] : self._offsets[index + 1]], dtype=torch.bool)

    def fingerprint(self) -> str:
        """Hash of the tokens of all rows, in their order."""
        digest = hashlib.sha256(self._offsets.tobytes())
        digest.update(self._tokens.tobytes())
        return digest.hexdigest()[:16]

    def token_counts(self, vocab_size: int) -> Tensor:
        """How often each token is a label: ``[V]`` int64."""
        tokens = torch.tensor(self._tokens, dtype=torch.int64)
        return torch.bincount(tokens[torch.tensor(self._mask, dtype=torch.bool)], minlength=vocab_size)


class FeatureReader(Protocol):
    """Stored features of the rows of a split."""

    def read(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Features ``[l, T * H]`` and, where stored, last hidden states ``[l, H]`` of a row."""
        ...


class Examples(Dataset[dict]):
    """Rows as a map-style data set.

    An index below zero is filler of row ``~index``: the same tokens with nothing supervised, so that every rank runs
    the same number of evaluation batches and no row counts twice. Several indices make one packed row, each a document
    of its own.

    Args:
        rows: The tokenised rows.
        reader: Their stored features, or None.
    """

    def __init__(self, rows: TokenisedRows, reader: FeatureReader | None = None) -> None:
        self.rows = rows
        self.reader = reader

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | tuple[int, ...]) -> dict:
        if not isinstance(index, int):
            return _packed([self[one] for one in index])
        row = ~index if index < 0 else index
        mask = self.rows.mask(row)
        out = {
            "tokens": self.rows.tokens(row),
            "mask": torch.zeros_like(mask) if index < 0 else mask,
            "lengths": [len(mask)],
            "family": self.rows.families[row],
        }
        if self.reader is not None:
            out["features"], out["last_hidden"] = self.reader.read(row)
        return out


def _packed(parts: Sequence[dict]) -> dict:
    """Several examples behind each other; the family is empty where they differ."""
    families = {part["family"] for part in parts}
    out = {
        "tokens": torch.cat([part["tokens"] for part in parts]),
        "mask": torch.cat([part["mask"] for part in parts]),
        "lengths": [length for part in parts for length in part["lengths"]],
        "family": families.pop() if len(families) == 1 else "",
    }
    for name in ("features", "last_hidden"):
        if parts[0].get(name) is not None:
            out[name] = torch.cat([part[name] for part in parts])
    return out


class Batch(DraftBatch):
    """A :class:`specdraft.types.DraftBatch` that a loader can pin."""

    def pin_memory(self) -> Batch:
        """Copy the tensors into page-locked memory."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.pin_memory())
        return self


def collate(examples: Sequence[dict]) -> DraftBatch:
    """Pad examples on the right into one batch; every row of the data is a document of its own."""
    tokens = [example["tokens"] for example in examples]
    documents = _pad([_documents(example["lengths"]) for example in examples], -1)
    return Batch(
        input_ids=_pad(tokens, 0),
        loss_mask=_pad([example["mask"] for example in examples], False),
        document_ids=documents,
        position_ids=_positions(documents),
        features=_stored(examples, "features"),
        last_hidden=_stored(examples, "last_hidden"),
        families=[example["family"] for example in examples],
    )


def _documents(lengths: Sequence[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def _positions(documents: Tensor) -> Tensor:
    """Positions ``[N, L]`` that restart at 0 in every document; padding goes on counting."""
    where = torch.arange(documents.shape[1]).expand_as(documents)
    starts = torch.zeros_like(documents)
    starts[:, 1:] = torch.where((documents[:, 1:] != documents[:, :-1]) & (documents[:, 1:] >= 0), where[:, 1:], 0)
    return where - starts.cummax(1).values


def _stored(examples: Sequence[dict], name: str) -> Tensor | None:
    return None if examples[0].get(name) is None else _pad([example[name] for example in examples], 0.0)


def _pad(rows: Sequence[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
