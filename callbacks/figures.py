"""Figures of one decoding; each is None without matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLORS = {"draft": "#6baed6", "correct": "#fd8d3c", "verify": "#74c476", "host": "#bdbdbd"}


def acceptance_figure(survival: Sequence[float], acceptance: Sequence[float]) -> Any | None:
    """Survival and conditional acceptance per draft position.

    Args:
        survival: ``S_1..S_K``.
        acceptance: Share of the offered k-th drafts that were accepted, K values.
    """
    axes = _axes()
    if axes is None:
        return None
    positions = range(1, len(survival) + 1)
    axes.bar(positions, survival, color="#9ecae1", label="survival $P(A \\geq k)$")
    axes.plot(positions, acceptance, "o-", color="#08519c", label="acceptance given the prefix")
    axes.set(xlabel="draft position k", ylabel="probability", ylim=(0, 1), xticks=list(positions))
    axes.legend(frameon=False)
    return axes.figure


def accepted_lengths_figure(shares: Sequence[float], mat: float) -> Any | None:
    """How many drafts a round accepts.

    Args:
        shares: Share of the rounds with A = 0..K accepted drafts.
        mat: Mean tokens per round, the bonus token counted.
    """
    axes = _axes()
    if axes is None:
        return None
    bars = axes.bar(range(len(shares)), shares, color="#9ecae1")
    axes.bar_label(bars, [f"{share:.0%}" for share in shares], fontsize="small")
    axes.axvline(mat - 1, color="#08519c", linestyle="--", label=f"mean {mat - 1:.2f}, MAT {mat:.2f}")
    axes.set(xlabel="accepted drafts of a round", ylabel="share of the rounds", xticks=range(len(shares)))
    axes.margins(y=0.12)
    axes.legend(frameon=False)
    return axes.figure


def round_latency_figure(parts: Mapping[str, float], speedup: float) -> Any | None:
    """Where the time of a round goes, beside what the autoregressive loop takes for the same tokens.

    Args:
        parts: Milliseconds of draft, correct, verify and host.
        speedup: Tokens per second over the autoregressive ones, so that the loop takes ``speedup`` times the round.
    """
    axes = _axes(height=2.2)
    if axes is None:
        return None
    whole = sum(parts.values())
    start = 0.0
    for name, value in parts.items():
        axes.barh("one round", value, left=start, color=COLORS.get(name), label=f"{name} {value:.1f}")
        start += value
    plain = whole * speedup
    axes.barh("autoregressive", plain, color="#636363", label=f"same tokens {plain:.1f}")
    axes.invert_yaxis()
    axes.set(xlabel=f"ms (round {whole:.1f}, speed-up {speedup:.2f}x)")
    axes.legend(frameon=False, fontsize="small", ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.25))
    return axes.figure


def _axes(height: float = 3.0) -> Any | None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(6.5, height), layout="constrained").subplots()
