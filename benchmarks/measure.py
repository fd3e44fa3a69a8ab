"""Timing in alternation, and how a result was made."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdraft.callbacks.provenance import provenance


def interleaved(
    calls: dict[str, Callable[[], Any]], repeats: int = 15, device: torch.device | None = None
) -> dict[str, float]:
    """Median seconds of each call; the calls take turns, so that a busy machine is unfair to none.

    Args:
        calls: What to time, by name.
        repeats: Timed turns, behind two that are not.
        device: Device to wait for.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 2):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if device is not None and device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table; floats get three digits."""
    text = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in [list(heads), [":--", *["--:"] * (len(heads) - 1)], *text]]


def machine() -> str:
    """One line about machine and versions."""
    facts = provenance()
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in ("specdraft", "torch", "transformers"))
    devices = ", ".join(facts["devices"]) or _processor()
    revision = facts["git"][:10] + (" with changes" if facts["git_dirty"] else "")
    return f"{devices}, {os.cpu_count()} CPUs, {facts['threads']} threads; {versions}; revision {revision}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
