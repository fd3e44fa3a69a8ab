"""Intervals of a run's figures, and of the difference of two runs, from what became of every prompt.

Rounds of one prompt depend on each other, so prompts are what is drawn anew, and two runs are compared on the same
draws: prompts that are hard for both then cancel.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# what SpeculativeDecoding writes of every prompt; tokens and seconds are those behind its first token, without what it
# waits while others are prefilled
FIELDS = ("rounds", "accepted", "tokens", "seconds", "ar_tokens", "ar_seconds")
Array: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = dict[str, Array]
Statistic: TypeAlias = Callable[..., Array]


def read_counts(folder: Path, step: int, split: str = "val") -> Counts:
    """Fields ``[6]`` of every prompt, from the run's last ``decoded/SPLIT-STEP.csv`` up to a step; empty without one.

    A prompt that occurs twice is summed.

    Args:
        folder: Folder of the run.
        step: Training step of the comparison.
        split: Which rows were decoded, ``val`` or ``test``.

    Raises:
        ValueError: If the file lacks a field or is damaged, naming both.
    """
    steps = [int(path.stem.removeprefix(f"{split}-")) for path in (folder / "decoded").glob(f"{split}-*.csv")]
    if not any(found <= step for found in steps):
        return {}
    path = folder / "decoded" / f"{split}-{max(found for found in steps if found <= step)}.csv"
    out: Counts = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = {"prompt", *FIELDS} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path} has no column {sorted(missing)[0]!r}; it was not written by SpeculativeDecoding")
        for row in reader:
            try:
                values = np.array([float(row[name]) for name in FIELDS])
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{path}, line {reader.line_num} is damaged ({error}); validate the run's checkpoint again, or "
                    "delete the file to compare without intervals"
                ) from error
            out[row["prompt"]] = out.get(row["prompt"], np.zeros(len(FIELDS))) + values
    return out


def common(runs: Sequence[Counts]) -> list[Array]:
    """``[n, 6]`` for each run, over the prompts that all of them decoded, in one order."""
    shared = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    return [np.array([run[prompt] for prompt in shared]).reshape(-1, len(FIELDS)) for run in runs]


def mat(sums: Array) -> Array:
    """Mean tokens per round ``[...]``, the bonus token counted, from sums over prompts ``[..., 6]``."""
    return 1 + sums[..., 1] / np.maximum(sums[..., 0], 1)


def speedup(sums: Array) -> Array:
    """Speculative over autoregressive tokens per second of the same run ``[...]``, prefills left out.

    From the seconds of each prompt, which overlap where several requests are in flight: the quotient is then that of
    the speeds of a request, while ``decode/speedup`` also counts rows that stand empty at the end of the queue.
    """
    own = sums[..., 2] / np.maximum(sums[..., 3], 1e-9)
    plain = sums[..., 4] / np.maximum(sums[..., 5], 1e-9)
    return own / np.maximum(plain, 1e-9)


def interval(
    statistic: Statistic, runs: Sequence[Array], level: float = 0.95, resamples: int = 4000, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile bootstrap interval over prompts.

    Args:
        statistic: Takes the sums ``[resamples, 6]`` of each run and gives ``[resamples]``.
        runs: ``[n, 6]`` each, row for row the same prompts.
        level: Share of the draws inside.
        resamples: Draws of n prompts with replacement.
        seed: Seed of the draws.

    Returns:
        Lower and upper end; None for fewer than two prompts.
    """
    count = len(runs[0])
    if count < 2:
        return None
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    values = statistic(*(drawn @ run for run in runs))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
