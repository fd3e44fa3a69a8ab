"""Order of the rows: a function of (seed, epoch) alone, shared out over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler


class EpochBatchSampler(Sampler[list[int]]):
    """Batches of row indices for one rank.

    With ``shuffle`` (training) the order depends on seed and epoch only, never on the number of ranks, and rank r takes
    every world-size-th row of it. At most ``world_size - 1`` rows of the order's end are left out of an epoch, so that
    all ranks run equally many, equally full batches; no row is seen twice in an epoch.

    Without it (evaluation) the order is that of the file and no row is left out: missing rows of the last batches are
    filled with ``~index`` (below zero), which :class:`specdraft.data.tokens.Examples` serves with nothing supervised.

    Args:
        rows: Number of rows.
        batch_size: Rows of a batch, per rank.
        seed: Seed of the order.
        shuffle: Whether rows are shuffled.
        rank: Rank of this process.
        world_size: Number of processes.

    Raises:
        ValueError: If there are fewer training rows than ranks, or a number is out of range.
    """

    def __init__(
        self, rows: int, batch_size: int, *, seed: int = 0, shuffle: bool = True, rank: int = 0, world_size: int = 1
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is outside 0..{world_size - 1}")
        if shuffle and rows < world_size:
            raise ValueError(f"{rows} training rows cannot be shared out over {world_size} ranks; use fewer devices")
        self.rows = rows
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.start = 0

    @property
    def sampler(self) -> EpochBatchSampler:
        """This sampler; Lightning sets the epoch of the sampler *of* a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; a new one starts with its first batch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.start = 0

    def order(self) -> list[int]:
        """Row indices of this rank, in the order of the epoch."""
        if self.shuffle:
            order = torch.randperm(self.rows, generator=self.generator()).tolist()
            return order[self.rank : self.rows // self.world_size * self.world_size : self.world_size]
        order = list(range(self.rows))
        missing = -self.rows % self.world_size
        order += [~(i % self.rows) for i in range(missing)] if self.rows else []
        return order[self.rank :: self.world_size]

    def batches(self) -> list[list[int]]:
        """Batches of this rank over a whole epoch."""
        order = self.order()
        return [order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)]

    @property
    def layout(self) -> dict[str, int]:
        """What decides which rows the n-th batch of an epoch holds."""
        return {
            "rows": self.rows,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "world_size": self.world_size,
        }

    def __iter__(self) -> Iterator[list[Any]]:
        batches, start = self.batches(), self.start
        self.start = 0  # used up: another pass over the same epoch starts at its beginning
        yield from batches[start:]

    def __len__(self) -> int:
        """Batches of a whole epoch, wherever the next pass starts."""
        share = self.rows // self.world_size if self.shuffle else -(-self.rows // self.world_size)
        return -(-share // self.batch_size)

    def generator(self) -> torch.Generator:
        """Randomness of the epoch, the same on every rank."""
        # one stream per (seed, epoch): seed + epoch would make seed 1 repeat seed 0 one epoch later
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
