"""Where target features come from: extracted while training, or once, into a memory-mapped cache."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from typing_extensions import override

from specdraft.data.extraction import extract, matches
from specdraft.data.feature_formats import FORMATS
from specdraft.data.feature_manifest import Manifest
from specdraft.data.feature_store import FeatureStore
from specdraft.data.fingerprints import tokenizer_fingerprint
from specdraft.data.tokens import FeatureReader, TokenisedRows
from specdraft.precision import has_fast_bf16, matmul_precision


class FeatureSource(ABC):
    """Supplies the target's features of the rows of a split."""

    @abstractmethod
    def prepare(
        self,
        target: Any,
        rows: TokenisedRows,
        split: str,
        *,
        last_hidden: bool = False,
        rank: int = 0,
        world_size: int = 1,
        agree: Callable[[bool], bool] | None = None,
    ) -> FeatureReader | None:
        """Make the features of a split ready.

        Args:
            target: The frozen target.
            rows: Rows of the split.
            split: Its name: train, val or test.
            last_hidden: Whether the last hidden state is needed too.
            rank: Rank of this process.
            world_size: Number of processes.
            agree: Waits until all processes are there and says whether all came with true.

        Returns:
            A reader, or None when the module extracts the features itself.
        """


class OnlineFeatures(FeatureSource):
    """Leave the extraction to the training step: nothing is stored, the target runs on every batch."""

    @override
    def prepare(
        self,
        target: Any,
        rows: TokenisedRows,
        split: str,
        *,
        last_hidden: bool = False,
        rank: int = 0,
        world_size: int = 1,
        agree: Callable[[bool], bool] | None = None,
    ) -> FeatureReader | None:
        return None


class CachedFeatures(FeatureSource):
    """Extract the features once and read them from disk afterwards.

    One row of L tokens takes ``L * T * H`` values; the size is told before anything is written. The features are never
    stored in fp16: taps carry single values beyond its range. Every rank extracts its share, so the folder must be on a
    file system that all ranks see. A complete cache is reused if target, taps, tokenizer, rows and type agree, and if
    a few features, and last hidden states where stored, equal those extracted anew, which catches other weights under
    the same name. An interrupted extraction goes on behind its last finished file, with any number of ranks.
    ``specdraft cache`` makes the cache ahead of training.

    Args:
        dir: Folder of the cache, one sub-folder per split; a cache there that was made for something else is refused.
            None picks a folder by fingerprint below ``$SPECDRAFT_CACHE``, ``$XDG_CACHE_HOME`` or ``~/.cache``, and a
            stale one is made anew.
        dtype: Type on disk. ``int8`` takes half of bf16, with a scale per token and tap
            (:class:`specdraft.data.feature_formats.Int8`); last hidden states then stay bf16.
        matmul_precision: Precision of fp32 matrix products while extracting: ``highest``, ``medium`` (bf16 products) or
            ``auto``, which is medium for a bf16 cache on a CPU with AMX or AVX-512 BF16 (measured two to three times
            faster there), and leaves the setting alone otherwise.
        batch_tokens: Tokens per extraction batch, padding included; a longer row makes a batch of its own.
        shard_mib: Most MiB of a file, which is what a crash costs and what a rank holds in memory while extracting.

    Raises:
        ValueError: If an option is out of range.
    """

    def __init__(
        self,
        dir: str | None = None,
        dtype: Literal["bfloat16", "float32", "int8"] = "bfloat16",
        matmul_precision: Literal["auto", "highest", "medium"] = "auto",
        batch_tokens: int = 4096,
        shard_mib: float = 256,
    ) -> None:
        if dtype not in FORMATS:
            raise ValueError(f"dtype {dtype!r} is unknown; use {', '.join(FORMATS)} (fp16 overflows on some taps)")
        if matmul_precision not in ("auto", "highest", "medium"):
            raise ValueError(f"matmul_precision {matmul_precision!r} is unknown; use auto, highest or medium")
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
        if shard_mib <= 0:
            raise ValueError(f"shard_mib must be positive, got {shard_mib}")
        self.dir = dir
        self.dtype = dtype
        self.matmul_precision = matmul_precision
        self.batch_tokens = batch_tokens
        self.shard_mib = shard_mib

    @override
    def prepare(
        self,
        target: Any,
        rows: TokenisedRows,
        split: str,
        *,
        last_hidden: bool = False,
        rank: int = 0,
        world_size: int = 1,
        agree: Callable[[bool], bool] | None = None,
    ) -> FeatureReader | None:
        store = self.store(target, rows, split, last_hidden)

        def begin() -> None:
            rank_zero_info(f"extracting features of {split}: {store.size / 2**30:.2f} GiB into {store.folder}")
            store.create()

        def end() -> None:
            if not store.finish():
                raise RuntimeError(f"{len(store.pending())} files of {store.folder} are missing; do all ranks see it?")

        together = partial(_together, agree or (lambda done: done), rank)
        together(lambda: self._clear(target, rows, store))
        if not store.complete:
            together(begin)
            together(lambda: self.fill(target, rows, store, rank, world_size), everywhere=True)
            together(end)
        return store.open()

    def _clear(self, target: Any, rows: TokenisedRows, store: FeatureStore) -> None:
        """Discard what was made for something else; refuse to where the user named the folder."""
        if store.stale(refuse=self.dir is not None):
            store.discard()
        if not matches(target, rows, store):
            if self.dir is not None:
                raise self.other_weights(store)
            store.discard()

    def store(self, target: Any, rows: TokenisedRows, split: str, last_hidden: bool) -> FeatureStore:
        """Files of a split; arguments as of :meth:`prepare`."""
        wanted = Manifest(
            target=target.spec.name,
            taps=list(target.spec.taps),
            hidden_size=target.spec.hidden_size,
            tokenizer=tokenizer_fingerprint(target.tokenizer),
            rows=rows.fingerprint(),
            row_count=len(rows),
            token_count=sum(rows.lengths),
            dtype=self.dtype,
            last_hidden=last_hidden,
            num_layers=target.spec.num_layers,
            vocab_size=target.spec.vocab_size,
            shard_bytes=int(self.shard_mib * 2**20),
            precision=self._precision(target.device),
        )
        return FeatureStore(self._folder(wanted, split), wanted, rows.lengths)

    def fill(self, target: Any, rows: TokenisedRows, store: FeatureStore, rank: int = 0, world_size: int = 1) -> None:
        """Extract this rank's share of what is missing; arguments as of :meth:`prepare`."""
        with matmul_precision(self._precision(target.device)):
            extract(target, rows, store, self.batch_tokens, rank=rank, world_size=world_size)

    @staticmethod
    def other_weights(store: FeatureStore) -> ValueError:
        """Says that the features of a folder were made by other weights."""
        return ValueError(
            f"features in {store.folder} are not those of the weights of {store.wanted.target!r} loaded now; "
            "delete the folder or name another one"
        )

    def _folder(self, wanted: Manifest, split: str) -> Path:
        if self.dir is not None:
            return Path(self.dir).expanduser() / split
        root = os.environ.get("SPECDRAFT_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(root) / "specdraft" / "features" / wanted.fingerprint()

    def _precision(self, device: torch.device) -> str:
        precision = self.matmul_precision
        if precision == "auto":
            # int8 is coarser than bf16 products, too
            fast = self.dtype != "float32" and torch.device(device).type == "cpu" and has_fast_bf16()
            return "medium" if fast else torch.get_float32_matmul_precision()
        return precision


def _together(agree: Callable[[bool], bool], rank: int, work: Callable[[], None], everywhere: bool = False) -> None:
    """Work on rank 0, or on every rank, and go on once all are done; where one fails all do, and nobody waits forever.

    Raises:
        RuntimeError: If another rank failed, which shows its own error.
    """
    failed: Exception | None = None
    if everywhere or rank == 0:
        try:
            work()
        except Exception as error:
            failed = error
    if not agree(failed is None):
        raise failed or RuntimeError("another rank could not prepare the features; its own error says why")
