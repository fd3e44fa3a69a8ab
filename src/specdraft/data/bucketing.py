"""Bucketing: batches of rows of similar length."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import override

from specdraft.data.sampler import EpochBatchSampler


class BucketBatchSampler(EpochBatchSampler):
    """Batches from buckets of similar length, in an order that mixes the buckets.

    Args:
        lengths: Tokens of each row.
        batch_size: Rows of a batch, per rank.
        buckets: Number of buckets.
        tokens_per_batch: Most tokens of a batch, padding included, in place of ``batch_size``; or None.
        **share: Further options of :class:`EpochBatchSampler`.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, buckets: int, tokens_per_batch: int | None, **share: Any
    ) -> None:
        super().__init__(len(lengths), batch_size, **share)
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        world = self.world_size
        # whole multiples of the ranks, so that only the last bucket leaves rows out of an epoch
        size = max(1, -(-len(order) // (buckets * world))) * world
        self.buckets = [order[at : at + size] for at in range(0, len(order), size)]
        if len(self.buckets[-1]) < world and len(self.buckets) > 1:
            self.buckets[-2:] = [self.buckets[-2] + self.buckets[-1]]
        longest = [max(lengths[i] for i in bucket) for bucket in self.buckets]
        self.sizes = [max(1, tokens_per_batch // n) if tokens_per_batch else batch_size for n in longest]

    @override
    def batches(self) -> list[list[int]]:
        generator, world = self.generator(), self.world_size
        found = []
        for bucket, size in zip(self.buckets, self.sizes, strict=True):
            order = bucket
            if self.shuffle:
                order = [bucket[i] for i in torch.randperm(len(bucket), generator=generator).tolist()]
            own = order[self.rank : len(order) // world * world : world]
            found += [own[at : at + size] for at in range(0, len(own), size)]
        if not self.shuffle:
            return found
        return [found[i] for i in torch.randperm(len(found), generator=generator).tolist()]

    @override
    def __len__(self) -> int:
        shares = (len(bucket) // self.world_size for bucket in self.buckets)
        return sum(-(-share // size) for share, size in zip(shares, self.sizes, strict=True))

    @property
    @override
    def layout(self) -> dict[str, int]:
        flat = array("q", [value for bucket in self.buckets for value in (*bucket, -1)] + self.sizes)
        return {**super().layout, "buckets": zlib.crc32(flat.tobytes())}
