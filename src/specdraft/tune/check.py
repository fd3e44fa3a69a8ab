"""The check run: is what was predicted what is measured?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from specdraft.bench.setup import fixed
from specdraft.decoding import RunningSurvival, StaticTable, TunedTables
from specdraft.decoding.tuned import ALL
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
        drift: Workload and concurrency to seconds of its step in the check, over seconds while latencies were measured:
            how much slower the machine had become.
        assessments: The choices, one per workload and concurrency.
    """

    temperature: float
    measured: Grid
    mats: Grid
    latencies: Grid
    policies: dict[str, dict[Pair, float]]
    baseline: dict[int, float]
    drift: dict[Pair, float]
    assessments: list[Assessment]


def check_run(
    meter: Meter, tables: TunedTables, predicted: Grid, levels: Sequence[int], plain: Mapping[int, float]
) -> Check:
    """Measure every block size and both policies for every workload and concurrency.

    Args:
        meter: Measures the checkpoint.
        tables: What the policies are made from.
        predicted: What was predicted from them.
        levels: Concurrencies.
        plain: Concurrency to seconds of an autoregressive step, measured among the latencies.
    """
    policies = (StaticTable, RunningSurvival)
    ways = [Way(size, fixed(size)) for size in tables.sizes]
    ways += [Way(max(tables.sizes), partial(cls.from_tables, tables), cls.__name__) for cls in policies]
    found: dict[Pair, dict[int, Throughput]] = {}
    by_policy: dict[str, dict[Pair, float]] = {cls.__name__: {} for cls in policies}
    baseline: dict[int, float] = {}
    drift: dict[Pair, float] = {}
    for rows in levels:
        by_way, lean = meter.check(rows, ways)
        baseline[rows] = lean[ALL].tokens_per_second
        drift |= {(workload, rows): value.seconds / plain[rows] for workload, value in lean.items()}
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
    assessments = assess(predicted, measured, tables.choices, drift)
    return Check(meter.params.temperature, measured, mats, latencies, by_policy, baseline, drift, assessments)
