"""The check run: is what was predicted what is measured?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from specdraft.bench.setup import fixed
from specdraft.decoding import RunningSurvival, StaticTable, TunedTables
from specdraft.tune.measuring import Meter, Way
from specdraft.tune.prediction import Assessment, Grid, Pair, assess


@dataclass(frozen=True)
class Check:
    """Measured tokens per second with full rows, prefill apart, at one temperature.

    Attributes:
        temperature: Sampling temperature.
        measured: Workload and concurrency to block size to rate: the exhaustive grid.
        policies: Name of a policy to workload and concurrency to rate.
        baseline: Concurrency to rate of the lean autoregressive loop, on all prompts.
        assessments: The choices, one per workload and concurrency.
    """

    temperature: float
    measured: Grid
    policies: dict[str, dict[Pair, float]]
    baseline: dict[int, float]
    assessments: list[Assessment]


def check_run(meter: Meter, tables: TunedTables, predicted: Grid, levels: Sequence[int]) -> Check:
    """Measure every block size and both policies for every workload and concurrency.

    Args:
        meter: Measures the checkpoint.
        tables: What the policies are made from.
        predicted: What was predicted from them.
        levels: Concurrencies.
    """
    policies = (StaticTable, RunningSurvival)
    ways = [Way(size, fixed(size)) for size in tables.sizes]
    ways += [Way(max(tables.sizes), partial(cls.from_tables, tables), cls.__name__) for cls in policies]
    measured: dict[Pair, dict[int, float]] = {}
    by_policy: dict[str, dict[Pair, float]] = {cls.__name__: {} for cls in policies}
    baseline = {}
    for rows in levels:
        baseline[rows] = meter.baseline(rows)
        for key, rates in meter.check(rows, ways).items():
            for workload, value in rates.items():
                if isinstance(key, int):
                    measured.setdefault((workload, rows), {})[key] = value
                else:
                    by_policy[key][workload, rows] = value
    choices = tables.choices
    return Check(meter.params.temperature, measured, by_policy, baseline, assess(predicted, measured, choices))
