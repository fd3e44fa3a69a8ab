"""Figure of a tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdraft.decoding import TunedTables
from specdraft.decoding.tuned import ALL
from specdraft.tune.check import Check
from specdraft.tune.prediction import Grid


def tuning_figure(tables: Sequence[TunedTables], grids: Sequence[Grid], checks: Sequence[Check]) -> Any | None:
    """MAT, latency and tokens/s against block size, and tokens/s against concurrency; None without matplotlib.

    A row of panels per temperature. Lines are predicted, crosses measured, of all prompts together; rings mark the
    choices.

    Args:
        tables: What was measured, one per temperature.
        grids: Predicted tokens per second, one per temperature.
        checks: Check runs, one per temperature, or none.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(17, 4 * len(tables)), layout="constrained")
    rows = figure.subplots(len(tables), 4, squeeze=False)
    for panels, table, grid in zip(rows, tables, grids, strict=True):
        check = next((check for check in checks if check.temperature == table.temperature), None)
        _mat(panels[0], table)
        _latency(panels[1], table)
        _by_block(panels[2], table, grid, check)
        _by_concurrency(panels[3], table, grid, check)
    return figure


def _mat(axes: Any, table: TunedTables) -> None:
    for workload in table.survival:
        mats = [table.mat(workload, size) for size in table.sizes]
        axes.plot(table.sizes, mats, "k-o" if workload == ALL else "-o", label=workload)
    axes.set(xlabel="block size", ylabel="MAT (bonus counted)", title=f"temperature {table.temperature:g}")
    _finish(axes, table.sizes)


def _latency(axes: Any, table: TunedTables) -> None:
    for rows in sorted(table.latency[table.sizes[0]]):
        times = [1e3 * table.latency[size][rows] for size in table.sizes]
        axes.plot(table.sizes, times, "-o", label=f"concurrency {rows}")
    axes.set(xlabel="block size", ylabel="round latency, ms")
    axes.set_ylim(bottom=0)
    _finish(axes, table.sizes)


def _by_block(axes: Any, table: TunedTables, grid: Grid, check: Check | None) -> None:
    for rows, chosen in sorted(table.choices[ALL].items()):
        rates = grid[ALL, rows]
        (drawn,) = axes.plot(table.sizes, [rates[size] for size in table.sizes], "-", label=f"concurrency {rows}")
        axes.plot(chosen, rates[chosen], "o", color=drawn.get_color(), fillstyle="none", markersize=11)
        if check is not None:
            found = check.measured[ALL, rows]
            axes.plot(table.sizes, [found[size] for size in table.sizes], "x", color=drawn.get_color())
    axes.set(xlabel="block size", ylabel="tokens/s")
    _finish(axes, table.sizes)


def _by_concurrency(axes: Any, table: TunedTables, grid: Grid, check: Check | None) -> None:
    levels = sorted(table.choices[ALL])
    for size in table.sizes:
        (drawn,) = axes.plot(levels, [grid[ALL, rows][size] for rows in levels], "-", label=f"B={size}")
        if check is not None:
            axes.plot(levels, [check.measured[ALL, rows][size] for rows in levels], "x", color=drawn.get_color())
    if check is not None:
        axes.plot(levels, [check.baseline[rows] for rows in levels], "s--", color="grey", label="AR")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="concurrency", ylabel="tokens/s")
    _finish(axes, levels)


def _finish(axes: Any, ticks: Sequence[int]) -> None:
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize="small")
