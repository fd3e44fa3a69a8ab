"""Where the time of a round goes: a trace to look at, and shares to read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch

from specdraft.bench.cells import Cell, Decode
from specdraft.decoding import Request

PARTS = ("draft", "correct", "verify", "host")
PROFILED_TOKENS = 24


def shares(round_ms: dict[str, float]) -> dict[str, float]:
    """Fraction of the round that each part takes; zeros where there was no round."""
    total = sum(round_ms[part] for part in PARTS)
    return {part: round_ms[part] / total if total else 0.0 for part in PARTS}


def write_trace(cell: Cell, decode: Decode, requests: list[Request], round_ms: dict[str, float], folder: Path) -> str:
    """Write a Chrome trace of a short decode, whose ranges carry the names of the parts.

    The shares come from the measured cell, not from the trace: the profiler slows the host down.

    Args:
        cell: What is decoded.
        decode: How.
        requests: One prompt per row.
        round_ms: Milliseconds per part of the measured cell.
        folder: Where ``trace-<cell>.json`` goes.

    Returns:
        Shares of the parts and the operators that take longest, as text.
    """
    few = [replace(request, max_new_tokens=min(PROFILED_TOKENS, request.max_new_tokens)) for request in requests]
    activities = [torch.profiler.ProfilerActivity.CPU]
    cuda = torch.cuda.is_available()
    if cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as recorded:
        decode(few, lambda *_: None)
    name = re.sub(r"[^\w.-]+", "-", f"{cell.method}-b{cell.block_size}-c{cell.concurrency}-t{cell.temperature:g}")
    path = folder / f"trace-{name}.json"
    recorded.export_chrome_trace(str(path))
    table = recorded.key_averages().table(
        sort_by="self_cuda_time_total" if cuda else "self_cpu_time_total", row_limit=12, max_name_column_width=40
    )
    parts = ", ".join(f"{part} {share:.1%}" for part, share in shares(round_ms).items())
    return f"{cell.title}, concurrency {cell.concurrency}: {parts} of the round\ntrace: {path}\n{table}"
