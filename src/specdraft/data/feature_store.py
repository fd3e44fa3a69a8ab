"""Files of a feature cache: flat memory-mapped values and a manifest that is written last."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdraft.data.fingerprints import short_hash

MANIFEST = "manifest.json"
_FILES = {"features": "features.bin", "last_hidden": "last_hidden.bin"}
_DISK = {"bfloat16": np.int16, "float32": np.float32}  # numpy has no bf16: its bits are kept as int16


@dataclass
class Manifest:
    """What a cache was made for.

    Attributes:
        target: Name of the target.
        taps: Tapped layers.
        hidden_size: Width H of the target.
        tokenizer: Fingerprint of vocabulary and chat template.
        rows: Fingerprint of the tokens of all rows.
        row_count: Number of rows.
        token_count: Number of tokens.
        dtype: Type on disk.
        last_hidden: Whether last hidden states are stored too.
        source_dtype: Type that the target computed in, and in which rows are returned.
        complete: Set when everything has been written.
    """

    target: str
    taps: list[int]
    hidden_size: int
    tokenizer: str
    rows: str
    row_count: int
    token_count: int
    dtype: str
    last_hidden: bool
    source_dtype: str = "float32"
    complete: bool = False

    def fingerprint(self) -> str:
        """Hash of everything that a cache depends on."""
        return short_hash({k: v for k, v in asdict(self).items() if k not in ("source_dtype", "complete")})

    def differences(self, wanted: Manifest) -> list[str]:
        """Fields in which this cache does not serve ``wanted``, with both values."""
        names = ("target", "taps", "hidden_size", "tokenizer", "rows", "row_count", "token_count", "dtype")
        found = [(name, getattr(self, name), getattr(wanted, name)) for name in names]
        if wanted.last_hidden and not self.last_hidden:
            found.append(("last_hidden", False, True))
        return [f"{name} is {old!r} in the cache and {new!r} now" for name, old, new in found if old != new]


class FeatureStore:
    """One split's features on disk.

    Args:
        folder: Folder of the files.
        wanted: What the cache must have been made for.
        offsets: ``[rows + 1]`` int64, first token of each row.
    """

    def __init__(self, folder: Path, wanted: Manifest, offsets: Tensor) -> None:
        self.folder = folder
        self.wanted = wanted
        self.offsets = offsets.tolist()

    @property
    def complete(self) -> bool:
        """Whether a finished cache of exactly what is wanted is there."""
        found = self._manifest()
        return found is not None and found.complete and not found.differences(self.wanted)

    @property
    def widths(self) -> dict[str, int]:
        """Values per token of each stored file."""
        out = {"features": len(self.wanted.taps) * self.wanted.hidden_size}
        return {**out, "last_hidden": self.wanted.hidden_size} if self.wanted.last_hidden else out

    @property
    def size(self) -> int:
        """Bytes that the files take."""
        return sum(self.widths.values()) * self.wanted.token_count * np.dtype(_DISK[self.wanted.dtype]).itemsize

    def check(self, refuse: bool) -> None:
        """Refuse a finished cache that was made for something else.

        Args:
            refuse: Whether to refuse; else such a cache is written over.

        Raises:
            ValueError: Naming what differs, with both values.
        """
        found = self._manifest()
        if refuse and found is not None and found.complete and (wrong := found.differences(self.wanted)):
            raise ValueError(
                f"the feature cache {self.folder} does not fit: {'; '.join(wrong)}. "
                "Name another folder, or delete this one"
            )

    def create(self) -> None:
        """Make empty files of the right size.

        Raises:
            OSError: If the disk has too little room.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.discard()
        free = shutil.disk_usage(self.folder).free
        if free < self.size:
            raise self._full(f"{free:,} are free")
        for name, width in self.widths.items():
            with open(self.folder / _FILES[name], "wb") as file:
                file.truncate(width * self.wanted.token_count * np.dtype(_DISK[self.wanted.dtype]).itemsize)

    def write(self, index: int, values: dict[str, Tensor]) -> None:
        """Write one row's values, ``[l, width]`` each.

        Plain writes and not a map: on a full disk a write raises, while a store into a mapped page kills the process.

        Raises:
            OSError: If the disk is full.
        """
        for name, width in self.widths.items():
            value = values[name].to(getattr(torch, self.wanted.dtype)).contiguous().cpu()
            raw = value.view(torch.int16) if self.wanted.dtype == "bfloat16" else value
            try:
                with open(self.folder / _FILES[name], "r+b", buffering=0) as file:
                    file.seek(self.offsets[index] * width * value.element_size())
                    left = memoryview(raw.numpy().tobytes())
                    while left:
                        left = left[file.write(left) or 0 :]
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"{self.folder} is not visible here; choose a folder on a file system that all ranks share"
                ) from error
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise self._full("the disk ran full while writing") from error

    def finish(self, source_dtype: str) -> None:
        """Write the manifest, which makes the cache valid, in one step.

        Args:
            source_dtype: Type that the target computed in.
        """
        manifest = {**asdict(self.wanted), "source_dtype": source_dtype, "complete": True}
        temporary = self.folder / f"{MANIFEST}.{os.getpid()}"
        temporary.write_text(json.dumps(manifest, indent=2) + "\n")
        os.replace(temporary, self.folder / MANIFEST)

    def discard(self) -> None:
        """Invalidate the cache; the manifest goes first."""
        for name in (MANIFEST, *_FILES.values()):
            (self.folder / name).unlink(missing_ok=True)

    def open(self) -> StoredFeatures:
        """Reader of the finished cache."""
        found = self._manifest()
        if found is None or not self.complete:
            raise FileNotFoundError(f"{self.folder} holds no finished feature cache")
        return StoredFeatures(self.folder, self.offsets, self.widths, found.dtype, found.source_dtype)

    def _manifest(self) -> Manifest | None:
        try:
            value: Any = json.loads((self.folder / MANIFEST).read_text())
            return Manifest(**value)
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, TypeError):
            return None

    def _full(self, why: str) -> OSError:
        return OSError(
            errno.ENOSPC,
            f"features need {self.size:,} bytes ({self.size / 2**30:.1f} GiB) in {self.folder}, but {why}; free some, "
            "name another folder, use fewer rows or taps, or extract online",
        )


class StoredFeatures:
    """Read rows of a finished cache.

    Args:
        folder: Folder of the files.
        offsets: First token of each row.
        widths: Values per token of each file.
        dtype: Type on disk.
        source_dtype: Type of the returned tensors, that in which the target computed.
    """

    def __init__(self, folder: Path, offsets: list[int], widths: dict[str, int], dtype: str, source_dtype: str) -> None:
        self._offsets = offsets
        self._stored, self._returned = getattr(torch, dtype), getattr(torch, source_dtype)
        self._maps = {
            name: np.memmap(folder / _FILES[name], dtype=_DISK[dtype], mode="r", shape=(offsets[-1], width))
            for name, width in widths.items()
        }

    def read(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Features ``[l, T * H]`` and, where stored, last hidden states ``[l, H]`` of a row, as copies."""
        start, stop = self._offsets[index], self._offsets[index + 1]
        out = {name: self._tensor(values[start:stop]) for name, values in self._maps.items()}
        return out["features"], out.get("last_hidden")

    def _tensor(self, values: np.ndarray) -> Tensor:
        # np.array copies: a tensor over the map itself would be read-only memory and hold the page cache
        return torch.from_numpy(np.array(values)).view(self._stored).to(self._returned)
