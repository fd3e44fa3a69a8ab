"""Reading a feature cache: memory-mapped shards, one copy per row."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdraft.data.feature_formats import FeatureFormat
from specdraft.data.feature_shards import ShardPlan

_MOST_OPEN = 1024  # a process may hold only so many maps


class StoredFeatures:
    """Read rows of a finished cache.

    Args:
        folder: Folder of the files.
        plans: Which rows lie in which file.
        row_count: Number of rows.
        format: How features were written.
        names: Tensors of each file.
        source_dtype: Type of the returned tensors, that in which the target computed.
        made_for: Fingerprint that each file must bear.
    """

    def __init__(
        self,
        folder: Path,
        plans: Sequence[ShardPlan],
        row_count: int,
        format: FeatureFormat,
        names: tuple[str, ...],
        source_dtype: str,
        made_for: str,
    ) -> None:
        self._folder, self._format, self._names, self._made_for = folder, format, names, made_for
        self._dtype = getattr(torch, source_dtype)
        self._files = [plan.name for plan in plans]
        # flat arrays: a million rows must not be a million tuples
        zeros = bytes(8 * row_count)
        self._shard, self._start, self._stop = (array("q", zeros) for _ in range(3))
        for plan in plans:
            for row, start, stop in zip(plan.rows, plan.starts, plan.starts[1:], strict=False):
                self._shard[row], self._start[row], self._stop[row] = plan.number, start, stop
        self._open: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def read(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Features ``[l, T * H]`` and, where stored, last hidden states ``[l, H]`` of a row, as copies.

        Raises:
            OSError: If the row's file is missing or damaged.
        """
        start, stop = self._start[index], self._stop[index]
        stored = {name: values[start:stop] for name, values in self._slices(self._shard[index]).items()}
        features = self._format.decode(stored, self._dtype)
        return features, stored["last_hidden"].to(self._dtype, copy=True) if "last_hidden" in stored else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}  # a spawned loader opens the files itself

    def _slices(self, shard: int) -> dict[str, Any]:
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        path = self._folder / self._files[shard]
        try:
            file = safe_open(str(path), framework="pt")
        except (SafetensorError, FileNotFoundError) as error:
            raise OSError(
                f"{path} is missing or damaged ({error}); delete it and run `specdraft cache` again"
            ) from error
        if (file.metadata() or {}).get("made_for") != self._made_for:
            raise OSError(f"{path} belongs to another feature cache; delete it and run `specdraft cache` again")
        self._open[shard] = {name: file.get_slice(name) for name in self._names}
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return self._open[shard]
