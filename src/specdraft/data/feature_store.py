"""A feature cache: shards, a record for each finished one, and a manifest that is written last."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from specdraft.data.feature_formats import FORMATS, Columns
from specdraft.data.feature_manifest import Manifest, Shard, read_manifest
from specdraft.data.feature_shards import ShardPlan, file_digest, plan_shards, write_shard
from specdraft.data.stored_features import StoredFeatures
from specdraft.scratch import sweep, write_json

MANIFEST = "manifest.json"
BEGUN = "unfinished.json"
_OLD_FILES = ("features.bin", "last_hidden.bin")


class FeatureStore:
    """One split's features on disk.

    While it is filled the folder holds ``unfinished.json``, the finished shards and a record of each (``.json``),
    written once its shard is on the disk: whatever kills the process, a record means a whole shard, and the next run
    makes the others. Processes need not know of each other; the same shard written twice is the same file.

    Args:
        folder: Folder of the files.
        wanted: What the cache must have been made for.
        lengths: Tokens of each row.
    """

    def __init__(self, folder: Path, wanted: Manifest, lengths: Sequence[int]) -> None:
        self.folder = folder
        self.wanted = wanted
        self.lengths = lengths
        self.format = FORMATS[wanted.dtype]

    @property
    def columns(self) -> Columns:
        """Type and width of every stored tensor."""
        out = self.format.columns(len(self.wanted.taps), self.wanted.hidden_size)
        return {**out, "last_hidden": (self.format.hidden_dtype, self.wanted.hidden_size)} if self._hidden else out

    @property
    def token_bytes(self) -> int:
        """Bytes of a token."""
        return sum(dtype.itemsize * width for dtype, width in self.columns.values())

    @property
    def size(self) -> int:
        """Bytes that all values take."""
        return self.token_bytes * self.wanted.token_count

    @property
    def missing_bytes(self) -> int:
        """Bytes that the values of unfinished shards will take."""
        return sum(plan.tokens for plan in self.pending()) * self.token_bytes

    @cached_property
    def plans(self) -> list[ShardPlan]:
        """Which rows lie in which file: as an earlier run dealt them, else as wanted now."""
        found = self._manifest()
        return plan_shards(self.lengths, self.token_bytes, (found or self.wanted).shard_bytes)

    @property
    def complete(self) -> bool:
        """Whether a finished cache of exactly what is wanted is there, its files of the right size."""
        found = self._manifest()
        if found is None or not found.complete or found.differences(self.wanted):
            return False
        return not self.pending()

    def pending(self) -> list[ShardPlan]:
        """Files that are still to be made; a file that is not as large as its record says is one of them."""
        records, sizes = self._records(), self._sizes()
        return [
            plan
            for plan in self.plans
            if plan.number not in records or sizes.get(plan.name) != records[plan.number].bytes
        ]

    def stale(self, refuse: bool) -> bool:
        """Whether the folder holds a cache that was made for something else.

        Args:
            refuse: Whether to refuse it, unless nothing of it is finished.

        Raises:
            ValueError: Naming what differs, with both values.
        """
        try:
            found = self._manifest()
        except ValueError:
            if refuse:
                raise
            return True
        if found is None or not (wrong := found.differences(self.wanted)):
            return False
        if refuse and (found.complete or any(self.folder.glob("shard-*.json"))):
            raise ValueError(
                f"the feature cache {self.folder} does not fit: {'; '.join(wrong)}. "
                "Name another folder, or delete this one"
            )
        return True

    def create(self) -> None:
        """Begin, or go on with what an interrupted run has finished.

        Raises:
            OSError: If the disk has too little room for what is missing.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)
        if self._manifest() is None:
            for record in self.folder.glob("shard-*.json"):
                record.unlink()
            write_json(self.folder / BEGUN, asdict(self.wanted))
        need, free = self.missing_bytes, shutil.disk_usage(self.folder).free
        if free < need:
            raise self._full(need, f"{free:,} are free")

    def write(self, plan: ShardPlan, values: dict[str, Tensor], source_dtype: torch.dtype) -> None:
        """Write a shard, and then its record.

        Args:
            plan: What the shard holds.
            values: Its tensors as :attr:`columns` says, one line per token.
            source_dtype: Type that the target computed in.

        Raises:
            OSError: If the disk is full.
        """
        try:
            size, digest = write_shard(self.folder, plan, values, self._made_for)
            kind = str(source_dtype).removeprefix("torch.")
            write_json(self._record(plan), asdict(Shard(plan.name, size, digest, kind)))
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.folder} is not visible here; choose a folder on a file system that all ranks share"
            ) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise self._full(self.missing_bytes, "the disk ran full while writing; what is finished is kept") from error

    def finish(self) -> bool:
        """Write the manifest if all shards are there; returns whether they are.

        Raises:
            ValueError: If shards were computed in different types.
        """
        if self.pending():
            return False
        records, found = self._records(), self._manifest() or self.wanted
        shards = [records[plan.number] for plan in self.plans if plan.number in records]
        if len(shards) < len(self.plans):  # another process has completed the manifest in between
            return self.complete
        if not found.complete or found.shards != shards:
            kinds = sorted({shard.source_dtype for shard in shards})
            if len(kinds) > 1:
                raise ValueError(f"shards of {self.folder} were computed in {' and '.join(kinds)}; delete the folder")
            kind = kinds[0] if kinds else "float32"
            whole = replace(found, last_hidden=self._hidden, source_dtype=kind, shards=shards, complete=True)
            write_json(self.folder / MANIFEST, asdict(whole))
        for path in (self.folder / BEGUN, *(self._record(plan) for plan in self.plans)):
            path.unlink(missing_ok=True)
        return True

    def discard(self) -> None:
        """Invalidate the cache; the manifest goes first."""
        for name in (MANIFEST, BEGUN, *_OLD_FILES):
            (self.folder / name).unlink(missing_ok=True)
        for path in self.folder.glob("shard-*"):
            path.unlink(missing_ok=True)
        self.__dict__.pop("plans", None)

    def damaged(self) -> list[str]:
        """Names of finished shards whose content is not what was written; reads all of them."""
        records = self._records()
        return [
            plan.name
            for plan in self.plans
            if plan.number in records and file_digest(self.folder / plan.name) != records[plan.number].sha256
        ]

    def open(self, partial: bool = False) -> StoredFeatures:
        """Reader of the finished cache.

        Args:
            partial: Whether unfinished caches are read too; only the rows of finished shards can be asked for.
        """
        records = self._records()
        if not (self.complete or (partial and records)):
            raise FileNotFoundError(f"{self.folder} holds no finished feature cache")
        kind = next((shard.source_dtype for shard in records.values()), "float32")
        names = tuple(self.columns)
        return StoredFeatures(self.folder, self.plans, len(self.lengths), self.format, names, kind, self._made_for)

    def finished_row(self) -> int | None:
        """A row whose shard is finished, or None if there is none."""
        missing = {plan.number for plan in self.pending()}
        return next((plan.rows[0] for plan in self.plans if plan.number not in missing), None)

    @property
    def _hidden(self) -> bool:
        """Whether last hidden states are stored: a cache that has them also serves those who want none."""
        found = self._manifest()
        return self.wanted.last_hidden or (found is not None and found.last_hidden)

    @property
    def _made_for(self) -> str:
        return (self._manifest() or self.wanted).fingerprint()

    def _manifest(self) -> Manifest | None:
        return read_manifest(self.folder / MANIFEST) or read_manifest(self.folder / BEGUN)

    def _record(self, plan: ShardPlan) -> Path:
        return self.folder / Path(plan.name).with_suffix(".json")

    def _records(self) -> dict[int, Shard]:
        """Finished shards by number."""
        found = self._manifest()
        if found is None:
            return {}
        out = dict(enumerate(found.shards))
        present = {path.name for path in self.folder.glob("shard-*.json")}
        for plan in self.plans:
            if self._record(plan).name in present:
                try:
                    out[plan.number] = Shard(**json.loads(self._record(plan).read_text()))
                except FileNotFoundError:  # another process has just completed the manifest
                    continue
        return out

    def _sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.folder.glob("shard-*.safetensors")}

    def _full(self, need: int, why: str) -> OSError:
        return OSError(
            errno.ENOSPC,
            f"features need {need:,} bytes ({need / 2**30:.1f} GiB) in {self.folder}, but {why}; free some, "
            "name another folder, use fewer rows or taps, or extract online",
        )
