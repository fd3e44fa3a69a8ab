"""JSON, Markdown and figure of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from specdraft.bench.tensorboard import write_tensorboard
from specdraft.scratch import write_text

Record = dict[str, Any]


def write_reports(folder: Path, records: Sequence[Record], facts: dict[str, Any]) -> str:
    """Write ``bench.json``, ``bench.md``, ``bench.png`` and ``tensorboard``; returns the Markdown.

    Args:
        folder: Where they go; made if needed.
        records: One per cell, see :func:`specdraft.bench.cells.summary`.
        facts: How they were made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "bench.json", json.dumps({"facts": facts, "cells": list(records)}, indent=1) + "\n")
    drawn = throughput_figure(records)
    if drawn is not None:
        drawn.savefig(folder / "bench.png", dpi=150)
    several = len({record["temperature"] for record in records}) > 1
    runs: dict[str, list[Record]] = {}
    for record in records:
        heat = f", temperature {record['temperature']:g}" if several else ""
        runs.setdefault(f"{title(record)}{heat}", []).append(record)
    write_tensorboard(folder, runs, drawn)
    text = markdown(records, facts, figure=drawn is not None)
    write_text(folder / "bench.md", text)
    return text


def line(record: Record) -> str:
    """One line about a finished cell."""
    mat = "" if record["mat"] is None else f", MAT {record['mat']:.2f}"
    same = "" if record["lossless"] is None else f", {record['lossless']:.0%} of outputs equal to AR"
    return (
        f"{title(record)}, concurrency {record['concurrency']}, temperature {record['temperature']:g}: "
        f"{record['tokens_per_second']:.1f} tokens/s ({_number(record['speedup'], 2)}x AR){mat}{same}"
    )


def title(record: Record) -> str:
    """Method and block size, or policy."""
    chooser = record.get("policy") or f"B={record['block_size']}"
    return record["method"] if record["block_size"] is None else f"{record['method']}, {chooser}"


def markdown(records: Sequence[Record], facts: dict[str, Any], figure: bool = True) -> str:
    """The whole report.

    Args:
        records: One per cell.
        facts: How they were made.
        figure: Whether ``bench.png`` exists.
    """
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in ("specdraft", "torch", "transformers"))
    devices = ", ".join(facts["devices"]) if str(facts["device"]).startswith("cuda") else facts["machine"]
    dtypes = ", ".join(f"{label} {dtype}" for label, dtype in facts["drafter_dtype"].items())
    out = [
        "# Benchmark",
        "",
        f"Target {facts['target']} in {facts['target_dtype']}; drafter in {dtypes}; {facts['device']} ({devices}), "
        f"{facts['threads']} threads; {facts['num_prompts']} prompts of {facts['prompts']}, at most "
        f"{facts['max_new_tokens']} new tokens, top_p {facts['top_p']:g}, top_k {facts['top_k']}, "
        f"seed {facts['seed']}{template(facts)}; {versions}.",
        "",
        "Tokens/s and speed-up leave the prefill out; the speed-up is over the lean autoregressive loop (AR) at the "
        "same concurrency. MAT counts the bonus token and is pooled over rounds. Rows that end are refilled until "
        "the prompts run out, so `rows` is below the concurrency.",
    ]
    for temperature in dict.fromkeys(record["temperature"] for record in records):
        own = [record for record in records if record["temperature"] == temperature]
        out += ["", f"## Temperature {temperature:g}", "", *_throughput(own), "", *_latency(own)]
        out += ["", *_families(own)]
    if figure:
        out += ["", "![tokens/s against concurrency](bench.png)"]
    return "\n".join(out) + "\n"


def template(facts: dict[str, Any]) -> str:
    """What was said to the chat template, empty if nothing."""
    options = facts.get("template_options")
    return f", template options {json.dumps(options)}" if options else ""


def _throughput(records: Sequence[Record]) -> list[str]:
    heads = ["method", "concurrency", "rows", "MAT", "tokens/s", "speed-up", "equal to AR"]
    heads += ["draft ms", "correct ms", "verify ms", "host ms", "round ms", "peak MiB"]
    rows = []
    for r in records:
        same = "" if r["lossless"] is None else f"{r['lossless']:.1%}"
        parts = [_number(r["round_ms"][part], 2) for part in ("draft", "correct", "verify", "host", "total")]
        speed = [_number(r["tokens_per_second"], 1), _number(r["speedup"], 2), same]
        counts = [str(r["concurrency"]), _number(r["mean_rows"], 1), _number(r["mat"], 2)]
        rows.append([title(r), *counts, *speed, *parts, _number(r["peak_memory_mib"], 0)])
    return [*_table(heads, rows), "", f"Peak memory: {records[0]['memory_kind']}."]


def _latency(records: Sequence[Record]) -> list[str]:
    heads = ["method", "concurrency"]
    names = {"ttft_ms": "first token", "itl_ms": "per token", "round_gap_ms": "gap"}
    points = ("p50", "p90", "p99")
    heads += [f"{name} {point}" for name in names.values() for point in points]
    rows = [
        [title(r), str(r["concurrency"]), *(_number(r[name][point], 1) for name in names for point in points)]
        for r in records
    ]
    note = (
        "Milliseconds. First token: from entering a row, the prefill included. Per token: the gap between two arrivals "
        "spread over the tokens that arrive together. Gap: between two arrivals."
    )
    return [*_table(heads, rows), "", note]


def _families(records: Sequence[Record]) -> list[str]:
    names = list(records[0]["families"])
    heads = ["method", "concurrency", *(f"{name}" for name in names)]
    rows = []
    for r in records:
        cells = []
        for name in names:
            family = r["families"][name]
            mat = "" if family["mat"] is None else f", MAT {family['mat']:.2f}"
            cells.append(f"{_number(family['speedup'], 2)}x{mat}")
        rows.append([title(r), str(r["concurrency"]), *cells])
    return [*_table(heads, rows), "", "Speed-up by prompt family: tokens per second of waiting of one request."]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heads, [":--", *["--:"] * (len(heads) - 1)], *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def throughput_figure(records: Sequence[Record]) -> Any | None:
    """Tokens/s against concurrency, a line per method and block size, a panel per temperature; None without matplotlib.

    Args:
        records: One per cell.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    temperatures = list(dict.fromkeys(record["temperature"] for record in records))
    figure = Figure(figsize=(5.5 * len(temperatures), 4), layout="constrained")
    panels = figure.subplots(1, len(temperatures), squeeze=False)[0]
    for axes, temperature in zip(panels, temperatures, strict=True):
        own = [record for record in records if record["temperature"] == temperature]
        for name in dict.fromkeys(title(record) for record in own):
            points = sorted((r["concurrency"], r["tokens_per_second"]) for r in own if title(r) == name)
            drafted = any(r["block_size"] is not None for r in own if title(r) == name)
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, "o-" if drafted else "s--", label=name)
        axes.set_xscale("log", base=2)
        levels = sorted({record["concurrency"] for record in own})
        axes.set_xticks(levels, [str(level) for level in levels])
        axes.set(xlabel="concurrency", ylabel="tokens/s", title=f"temperature {temperature:g}")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize="small")
    return figure
