"""How the training rows of an epoch become batches: padded, by length, or packed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from specdraft.data.bucketing import BucketBatchSampler
from specdraft.data.packing import PackedBatchSampler
from specdraft.data.sampler import EpochBatchSampler


@dataclass(frozen=True)
class Share:
    """Which part of an epoch a process sees, and in which order.

    Attributes:
        seed: Seed of the order.
        shuffle: Whether rows are shuffled.
        rank: Rank of this process.
        world_size: Number of processes.
    """

    seed: int = 0
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1

    def options(self) -> dict[str, Any]:
        """Keyword arguments of a sampler."""
        return dict(vars(self))


class Batching(ABC):
    """Makes the order of the training rows, a function of (seed, epoch) that every rank computes for itself.

    Every epoch has the same number of batches, so that schedules and resuming stay exact. Evaluation is always padded.
    """

    @abstractmethod
    def sampler(self, lengths: Sequence[int], batch_size: int, max_length: int, share: Share) -> EpochBatchSampler:
        """Order of the batches.

        Args:
            lengths: Tokens of each row.
            batch_size: ``batch_size`` of the data module.
            max_length: Most tokens of a row.
            share: This process.
        """

    def largest(self, batch_size: int, max_length: int) -> tuple[int, int]:
        """Rows and tokens per row of the largest batch."""
        return batch_size, max_length


class Padded(Batching):
    """``batch_size`` rows in random order, padded to the longest of them."""

    @override
    def sampler(self, lengths: Sequence[int], batch_size: int, max_length: int, share: Share) -> EpochBatchSampler:
        return EpochBatchSampler(len(lengths), batch_size, **share.options())


class Bucketed(Batching):
    """Rows of similar length together, so that little is padded; batches and the rows within them stay random.

    Rows are sorted into buckets by length once. In every epoch each bucket is shuffled and cut into batches, and the
    batches of all buckets are shuffled. All ranks of a step work on the same bucket, so that none waits for a longer
    one. In each bucket fewer rows than there are ranks may be left out of an epoch, others in the next one.

    Args:
        buckets: Number of buckets, each with the same number of rows.
        tokens_per_batch: Most tokens of a batch and rank, padding included, in place of ``batch_size``: short rows
            make large batches. A row that is longer makes a batch of its own.

    Raises:
        ValueError: If a number is below 1.
    """

    def __init__(self, buckets: int = 16, tokens_per_batch: int | None = None) -> None:
        _check(buckets=buckets, tokens_per_batch=tokens_per_batch)
        self.buckets = buckets
        self.tokens_per_batch = tokens_per_batch

    @override
    def sampler(self, lengths: Sequence[int], batch_size: int, max_length: int, share: Share) -> EpochBatchSampler:
        return BucketBatchSampler(lengths, batch_size, self.buckets, self.tokens_per_batch, **share.options())

    @override
    def largest(self, batch_size: int, max_length: int) -> tuple[int, int]:
        if self.tokens_per_batch is None:
            return batch_size, max_length
        return max(1, self.tokens_per_batch // max_length), max_length


class Packed(Batching):
    """Whole conversations behind each other in rows of at most ``pack_length`` tokens; none is cut or crossed.

    Attention, positions, anchors and labels stay within each conversation. Rows are filled once, best fit first, and
    keep their content; their order is random in every epoch. ``batch_size`` counts packed rows. ``num_anchors`` of the
    objective holds per conversation: bound what a step costs with its ``anchor_budget``.

    Args:
        pack_length: Tokens of a packed row; null is ``max_length``.
        tokens_per_batch: Most tokens of a batch and rank, in place of ``batch_size``.

    Raises:
        ValueError: If a number is below 1.
    """

    def __init__(self, pack_length: int | None = None, tokens_per_batch: int | None = None) -> None:
        _check(pack_length=pack_length, tokens_per_batch=tokens_per_batch)
        self.pack_length = pack_length
        self.tokens_per_batch = tokens_per_batch

    @override
    def sampler(self, lengths: Sequence[int], batch_size: int, max_length: int, share: Share) -> EpochBatchSampler:
        rows, length = self.largest(batch_size, max_length)
        return PackedBatchSampler(lengths, rows, length, **share.options())

    @override
    def largest(self, batch_size: int, max_length: int) -> tuple[int, int]:
        length = self.pack_length or max_length
        if self.tokens_per_batch is None:
            return batch_size, length
        if self.tokens_per_batch < length:
            raise ValueError(
                f"tokens_per_batch {self.tokens_per_batch} holds no packed row of {length} tokens; raise it, or lower "
                "pack_length"
            )
        return self.tokens_per_batch // length, length


def _check(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
