"""Preallocated key/value storage with per-row lengths: rolling back is moving a length."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of every layer for N rows that progress at their own pace.

    Nothing is concatenated while decoding: a write scatters into the preallocated storage, and what lies at or
    behind a row's length is free to be overwritten. The caller moves the lengths, never the writer.

    Args:
        layers: Number of layers.
        rows: Number of rows N.
        capacity: Positions per row.
        heads: Key/value heads.
        head_dim: Width of a head.
        dtype: Floating-point type of the storage.
        device: Device of the storage.

    Attributes:
        lengths: ``[N]`` int64, committed positions of each row.
        extent: Host-side upper bound of ``lengths``, kept so that no device has to be asked for it; exact for a
            single row.
        static: Whether reads cover the whole capacity and writes go where the device says, whatever the extent, as
            a captured CUDA graph needs it; lengths then move in place.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        capacity: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (rows, heads, capacity, head_dim)
        # zeros, not empty: a masked position must not hold NaN, since 0 * NaN is NaN in the value product
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.capacity = capacity
        self.extent = 0
        self.static = False
        self._rows = torch.arange(rows, device=device)

    @property
    def rows(self) -> int:
        """Number of rows N."""
        return self.lengths.shape[0]

    def positions(self, count: int) -> Tensor:
        """Positions ``[N, count]`` that the next ``count`` tokens of each row take."""
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device)

    def write(self, layer: int, keys: Tensor, values: Tensor, where: Tensor | None = None) -> None:
        """Store ``[N, heads, n, head_dim]`` keys and values of one layer behind each row's length.

        Args:
            layer: Index of the layer.
            keys: Keys of the n fresh positions.
            values: Values of the n fresh positions.
            where: ``[N, n]`` from :meth:`positions`, to compute it once for all layers.

        Raises:
            ValueError: If the rows would outgrow the capacity, or the shape is not that of the storage.
        """
        count = keys.shape[2]
        if self.extent + count > self.capacity:
            raise ValueError(
                f"cache of {self.capacity} positions cannot take {count} more behind {self.extent}; "
                "allocate it with a larger capacity"
            )
        stored = self.keys[layer].shape
        for fresh in (keys, values):
            if (fresh.shape[0], fresh.shape[1], fresh.shape[3]) != (stored[0], stored[1], stored[3]):
                raise ValueError(
                    f"layer {layer} writes [N, heads, n, head_dim] = {tuple(fresh.shape)}, but the cache holds "
                    f"{stored[0]} rows of {stored[1]} heads of width {stored[3]}"
                )
        if self.rows == 1 and not self.static:  # a plain copy, several times faster than a scatter
            stop = self.extent + count
            self.keys[layer][:, :, self.extent : stop] = keys
            self.values[layer][:, :, self.extent : stop] = values
            return
        where = self.positions(count) if where is None else where
        self.keys[layer][self._rows[:, None], :, where] = keys.transpose(1, 2).to(self.keys[layer].dtype)
        self.values[layer][self._rows[:, None], :, where] = values.transpose(1, 2).to(self.values[layer].dtype)

    def readable(self, count: int) -> int:
        """Positions per row that :meth:`read` gives."""
        return self.capacity if self.static else min(self.extent + count, self.capacity)

    def read(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """Views of the keys and values up to the longest row plus ``count`` fresh positions."""
        stop = self.readable(count)
        return self.keys[layer][:, :, :stop], self.values[layer][:, :, :stop]

    def advance(self, counts: Tensor | int, extent: int | None = None) -> None:
        """Commit ``counts`` (``[N]`` or one number) positions per row.

        Args:
            counts: Positions to keep of those just written.
            extent: New host-side bound of the lengths; without it the device is asked, which synchronises.
        """
        if self.static:
            self.lengths += counts
        else:
            self.lengths = self.lengths + counts
        self.extent = int(self.lengths.max()) if extent is None else extent

    def select(self, rows: Tensor) -> None:
        """Keep only ``rows`` (``[n]`` int64), in that order."""
        self.keys = [k.index_select(0, rows) for k in self.keys]
        self.values = [v.index_select(0, rows) for v in self.values]
        self.lengths = self.lengths.index_select(0, rows)
        self._rows = torch.arange(self.rows, device=self.lengths.device)
        self.extent = int(self.lengths.max()) if self.rows else 0

    def insert(self, rows: Tensor, other: KeyValueCache) -> None:
        """Overwrite ``rows`` (``[n]`` int64) with the n rows of ``other``, whose capacity may be smaller."""
        stop = other.extent
        for mine, theirs in zip(self.keys + self.values, other.keys + other.values, strict=True):
            mine[rows, :, :stop] = theirs[:, :, :stop].to(mine.dtype)
        if self.static:
            self.lengths.index_copy_(0, rows, other.lengths)
        else:
            self.lengths = self.lengths.index_copy(0, rows, other.lengths)
        self.extent = int(self.lengths.max())
