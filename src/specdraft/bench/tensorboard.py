"""A benchmark in TensorBoard: concurrency as the step, so that its charts lay methods over each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
VALUES = ("tokens_per_second", "speedup", "mat")


def write_tensorboard(folder: Path, runs: Mapping[str, Sequence[dict[str, Any]]], figure: Any | None) -> None:
    """Write ``FOLDER/NAME`` per way to decode, a step per concurrency, and the figure beside them.

    What an earlier benchmark left there is replaced.

    Args:
        folder: The benchmark's folder.
        runs: Records of :func:`specdraft.bench.cells.summary` by the name of their way to decode, one per concurrency.
        figure: Throughput against concurrency, or None without matplotlib.
    """
    from torch.utils.tensorboard import SummaryWriter

    place = folder / FOLDER
    for old in place.rglob("events.out.tfevents.*"):
        old.unlink()
    for title, records in runs.items():
        with SummaryWriter(str(place / re.sub(r"[^\w.=-]+", "_", title))) as writer:
            for record in sorted(records, key=lambda record: record["concurrency"]):
                for name in VALUES:
                    if record[name] is not None:
                        writer.add_scalar(f"bench/{name}", record[name], record["concurrency"])
    if figure is not None:
        with SummaryWriter(str(place)) as writer:
            writer.add_figure("bench/throughput", figure)
