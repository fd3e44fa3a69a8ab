"""The check run: is what was predicted what is measured?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from specdraft.bench.setup import fixed
from specdraft.decoding import RunningSurvival, StaticTable, TunedTables
from specdraft.tune.measuring import Meter, Throughput, Way
from specdraft.tune.prediction import Assessment, Grid, Pair, assess


@dataclass(frozen=True)
class Check:
    """Measured tokens per second with full rows, prefill apart, at one temperature.

    Attributes:
        temperature: Sampling temperature.
        measured: Workload and concurrency to block size to rate: the exhaustive grid.
        mats: The same to measured MAT.
        latencies: The same to mean seconds of a round.
        policies: Name of a policy to workload and concurrency to rate.
        baseline: Concurrency to rate of the lean autoregressive loop, on all prompts.
        assessments: The choices, one per workload and concurrency.
    """

    temperature: float
    measured: Grid
    mats: Grid
    latencies: Grid
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
    found: dict[Pair, dict[int, Throughput]] = {}
    by_policy: dict[str, dict[Pair, float]] = {cls.__name__: {} for cls in policies}
    baseline = {}
    for rows in levels:
        by_way, baseline[rows] = meter.check(rows, ways)
        for key, values in by_way.items():
            for workload, value in values.items():
                if isinstance(key, int):
                    found.setdefault((workload, rows), {})[key] = value
                else:
                    by_policy[key][workload, rows] = value.tokens_per_second
    measured, mats, latencies = (
        {pair: {size: getattr(value, name) for size, value in values.items()} for pair, values in found.items()}
        for name in ("tokens_per_second", "mat", "seconds")
    )
    assessments = assess(predicted, measured, tables.choices)
    return Check(meter.params.temperature, measured, mats, latencies, by_policy, baseline, assessments)
