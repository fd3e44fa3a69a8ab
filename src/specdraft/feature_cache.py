"""Fill the feature cache of a run ahead of its training."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from specdraft.data import ChatDataModule
from specdraft.data.extraction import matches
from specdraft.data.feature_store import FeatureStore
from specdraft.data.features import CachedFeatures
from specdraft.data.tokens import TokenisedRows
from specdraft.module import DraftingModule

UNASKED_BYTES = 1 << 30
Configured = Callable[[Sequence[str]], tuple[DraftingModule, ChatDataModule, Any]]


def cache(words: Sequence[str], configured: Configured) -> None:
    """Extract the target's features of a run's data ahead of training.

    Args:
        words: Options of :func:`_options`, and those of ``specdraft fit``, a ``--config`` at least.
        configured: Makes model and data of the options of ``fit``, and gives those of the trainer.

    Raises:
        ValueError: If the data are not cached, or the cache there does not fit.
        SystemExit: If the size is declined, or a file is damaged.
    """
    options, rest = _options().parse_known_args(list(words))
    if not 0 <= options.rank < options.world_size:
        raise ValueError(f"rank {options.rank} must be in 0..{options.world_size - 1}, the ranks of world_size")
    module, data, trainer = configured(rest)
    source = data.features
    if not isinstance(source, CachedFeatures):
        raise ValueError(
            f"the data's features are {type(source).__name__}, which stores nothing; add "
            "--data.init_args.features=CachedFeatures"
        )
    module.to(_device(options.device, str(trainer.accelerator)))
    data.connect(module.target, module.needs_last_hidden)
    jobs = [
        (name, data.tokens(name), source.store(module.target, data.tokens(name), name, module.needs_last_hidden))
        for name in options.splits
        if data.rows(name)
    ]
    if options.verify:
        _verify(jobs)
        return
    # other processes may be at work in a folder, so that nothing is discarded unless this is the only one
    refuse = source.dir is not None or options.world_size > 1
    missing, outdated = 0, []
    for name, rows, store in jobs:
        if store.stale(refuse=refuse):
            store.discard()
        other = not matches(module.target, rows, store)
        if other:
            if refuse:
                raise source.other_weights(store)
            outdated.append(store)  # what is there goes when its successor is agreed to
        print(_described(name, store, other), flush=True)
        missing += store.size if other else store.missing_bytes
    if not _confirmed(missing, options.yes):
        raise SystemExit("nothing was written")
    for store in outdated:
        store.discard()
    for name, rows, store in jobs:
        if not store.complete:
            store.create()
            source.fill(module.target, rows, store, options.rank, options.world_size)
        if store.finish():
            print(f"{name}: complete, {store.size / 2**20:,.1f} MiB in {store.folder}")
        else:
            print(f"{name}: {len(store.pending())} of {len(store.plans)} files are left to other ranks, or to a rerun")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "specdraft cache",
        description="Extract the target's features of a run's data ahead of training, into the folder where the run "
        "looks for them. The size is told first. An interrupted extraction goes on behind its last finished file.",
        epilog="All other options are those of `specdraft fit`: --config FILE, and changes such as "
        "--data.init_args.features.init_args.dtype=int8. Several processes share the work under torchrun, or by --rank "
        "and --world-size: torchrun --nproc-per-node 8 -m specdraft cache --config FILE --yes",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help=f"write without asking; up to {UNASKED_BYTES >> 30} GiB are written unasked, and more is refused where "
        "there is no terminal to ask",
    )
    parser.add_argument("--verify", action="store_true", help="only compare the content of each file with its digest")
    parser.add_argument(
        "--splits", nargs="+", default=["train", "val"], choices=["train", "val", "test"], help="default: train val"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--rank", type=int, default=int(os.environ.get("RANK", 0)), help="default: of torchrun, or 0")
    parser.add_argument(
        "--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", 1)), help="default: of torchrun, or 1"
    )
    return parser


def _device(wanted: str, accelerator: str) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() and accelerator != "cpu" else "cpu"
    if wanted == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device(wanted)


def _described(name: str, store: FeatureStore, other_weights: bool) -> str:
    missing, place = store.size if other_weights else store.missing_bytes, store.folder
    while not place.exists():
        place = place.parent
    free = os.statvfs(place)
    wanted = store.wanted
    return (
        f"{name}: {wanted.row_count:,} rows, {wanted.token_count:,} tokens x {store.token_bytes:,} bytes "
        f"({len(wanted.taps)} taps of {wanted.hidden_size} as {wanted.dtype}"
        f"{', last hidden states' if 'last_hidden' in store.columns else ''}) = {_size(store.size)}; "
        f"{_size(missing)} to write into {Path(store.folder)}, {_size(free.f_bavail * free.f_frsize)} free"
        f"{' (in place of features of other weights)' if other_weights else ''}"
    )


def _confirmed(missing: int, yes: bool) -> bool:
    if yes or missing <= UNASKED_BYTES:
        return True
    if not sys.stdin.isatty():
        raise SystemExit(
            f"{_size(missing)} would be written, more than {_size(UNASKED_BYTES)}, and there is no terminal to ask: "
            "add --yes"
        )
    return input(f"write {_size(missing)}? [y/N] ").strip().lower() in ("y", "yes")


def _verify(jobs: list[tuple[Any, TokenisedRows, FeatureStore]]) -> None:
    bad = []
    for name, _, store in jobs:
        store.stale(refuse=True)
        if not store.complete:
            bad.append(f"{name}: {store.folder} is not complete, {len(store.pending())} files are missing")
        elif damaged := store.damaged():
            bad.append(f"{name}: damaged in {store.folder}: {', '.join(damaged)}; delete them and run again")
        else:
            print(f"{name}: {len(store.plans)} files, {_size(store.size)}, all as they were written")
    if bad:
        raise SystemExit("\n".join(bad))


def _size(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
