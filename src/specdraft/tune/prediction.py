"""Throughput predicted from survival and latency, the block sizes that follow, and how good they turned out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from specdraft.decoding.tuned import ALL, Latency, Survival

Pair: TypeAlias = tuple[str, int]  # workload, concurrency
Grid: TypeAlias = Mapping[Pair, Mapping[int, float]]  # tokens per second, or another quantity, by block size


def predicted_grid(survival: Survival, latency: Latency) -> dict[Pair, dict[int, float]]:
    """Tokens per second of every workload, concurrency c and block size B: ``c * (1 + sum_k S_k) / latency``.

    Args:
        survival: Workload to block size to ``S_1..S_K``.
        latency: Block size to concurrency to seconds of a round.
    """
    levels = sorted({rows for known in latency.values() for rows in known})
    return {
        (workload, rows): {
            size: rows * (1 + sum(curves[size])) / known[rows] for size, known in sorted(latency.items())
        }
        for workload, curves in survival.items()
        for rows in levels
    }


def best_blocks(grid: Grid) -> dict[str, dict[int, int]]:
    """Workload to concurrency to the block size with most tokens per second, the smallest of equals."""
    choices: dict[str, dict[int, int]] = {}
    for (workload, rows), rates in grid.items():
        choices.setdefault(workload, {})[rows] = max(sorted(rates), key=rates.__getitem__)
    return choices


def best_fixed(grid: Grid, pairs: Collection[Pair]) -> int:
    """The one block size with the best geometric mean of tokens per second over all pairs.

    Args:
        grid: Tokens per second.
        pairs: Workloads and concurrencies that count.
    """
    sizes = sorted(next(iter(grid.values())))
    return max(sizes, key=lambda size: geometric_mean([grid[pair][size] for pair in pairs]))


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean; 0 if a value is 0.

    Raises:
        ValueError: If there are no values.
    """
    if not values:
        raise ValueError("there is no mean of no values")
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0


@dataclass(frozen=True)
class Assessment:
    """How the choice for one workload and concurrency turned out; rates are tokens per second.

    Attributes:
        workload: Workload.
        concurrency: Requests in flight.
        chosen: Block size chosen by prediction.
        predicted: Predicted rate of the choice.
        measured: Measured rate of the choice.
        best: Block size that measured fastest.
        best_measured: Its rate; the largest of noisy values, so that the regret is more often over- than understated.
        fixed: Best single block size for all pairs.
        fixed_measured: Its rate here.
        drift: Seconds of an autoregressive step when this was measured, over those when latencies were.
    """

    workload: str
    concurrency: int
    chosen: int
    predicted: float
    measured: float
    best: int
    best_measured: float
    fixed: int
    fixed_measured: float
    drift: float = 1.0

    @property
    def error(self) -> float:
        """Relative error of the prediction, ``predicted / measured - 1``."""
        return self.predicted / self.measured - 1

    @property
    def error_at_equal_speed(self) -> float:
        """The error that is not the machine's: of the prediction for the speed that it had in the check.

        The autoregressive loop, which took turns with what was measured both times, tells that speed.
        """
        return self.predicted / self.drift / self.measured - 1

    @property
    def gain(self) -> float:
        """Gain over the best fixed block size, ``measured / fixed_measured - 1``."""
        return self.measured / self.fixed_measured - 1

    @property
    def regret(self) -> float:
        """Loss against the best of the exhaustive grid, ``1 - measured / best_measured``."""
        return 1 - self.measured / self.best_measured


def assess(
    predicted: Grid,
    measured: Grid,
    choices: Mapping[str, Mapping[int, int]],
    drift: Mapping[Pair, float] | None = None,
) -> list[Assessment]:
    """Compare the choices with the exhaustive grid.

    Args:
        predicted: Predicted tokens per second.
        measured: Measured tokens per second, of the same block sizes; its pairs are assessed.
        choices: Workload to concurrency to chosen block size.
        drift: How much slower the machine had become when each pair was measured; None where nobody knows.
    """
    # all together is the sum of the others, it must not vote with them
    pairs = [pair for pair in measured if pair[0] != ALL] or list(measured)
    fixed = best_fixed(measured, pairs)
    out = []
    for (workload, rows), rates in measured.items():
        chosen = choices[workload][rows]
        best = max(sorted(rates), key=rates.__getitem__)
        out.append(
            Assessment(
                workload,
                rows,
                chosen,
                predicted[workload, rows][chosen],
                rates[chosen],
                best,
                rates[best],
                fixed,
                rates[fixed],
                1.0 if drift is None else drift[workload, rows],
            )
        )
    return out
