"""Packing: whole rows of the data behind each other in rows of bounded length."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import override

from specdraft.data.sampler import EpochBatchSampler


def pack(lengths: Sequence[int], capacity: int, seed: int) -> list[tuple[int, ...]]:
    """Put every row into a pack of at most ``capacity`` tokens: longest first, into the fullest that still has room.

    Args:
        lengths: Tokens of each row.
        capacity: Most tokens of a pack.
        seed: Decides between rows of equal length.

    Returns:
        Row indices of each pack.

    Raises:
        ValueError: If a row is longer than a pack.
    """
    if lengths and max(lengths) > capacity:
        raise ValueError(
            f"a row of {max(lengths)} tokens does not fit pack_length {capacity}; raise pack_length or lower max_length"
        )
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed % 2**63)).tolist()
    packs: list[list[int]] = []
    room: dict[int, list[int]] = {}  # free tokens -> packs
    free: list[int] = []  # its keys, sorted
    for row in sorted(order, key=lambda i: -lengths[i]):
        at = bisect_left(free, lengths[row])
        if at == len(free):
            number, left = len(packs), capacity
            packs.append([])
        else:
            left = free[at]
            number = room[left].pop()
            if not room[left]:
                del room[left], free[at]
        packs[number].append(row)
        left -= lengths[row]
        if left not in room:
            insort(free, left)
        room.setdefault(left, []).append(number)
    return [tuple(one) for one in packs]


class PackedBatchSampler(EpochBatchSampler):
    """Batches of packs, each a tuple of rows; the packs are the same in every epoch, their order is random.

    Args:
        lengths: Tokens of each row.
        batch_size: Packs of a batch, per rank.
        pack_length: Most tokens of a pack.
        seed: Seed of packs and order.
        **share: Further options of :class:`EpochBatchSampler`.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, pack_length: int, *, seed: int = 0, **share: Any
    ) -> None:
        self.packs = pack(lengths, pack_length, seed)
        super().__init__(len(self.packs), batch_size, seed=seed, **share)

    @override
    def batches(self) -> list[list[Any]]:
        return [[self._pack(number) for number in batch] for batch in super().batches()]

    def _pack(self, number: int) -> tuple[int, ...]:
        return self.packs[number] if number >= 0 else tuple(~row for row in self.packs[~number])

    @property
    @override
    def layout(self) -> dict[str, int]:
        flat = array("q", [value for one in self.packs for value in (*one, -1)])
        return {**super().layout, "packs": zlib.crc32(flat.tobytes())}
