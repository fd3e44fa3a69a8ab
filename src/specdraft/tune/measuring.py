"""What tune measures, with the benchmark's own code: survival curves, latencies, and the check run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from specdraft.bench.cells import AR, Cell, Job, Measurement, measure
from specdraft.bench.journal import Journal
from specdraft.bench.setup import Setup, autoregressive, fixed, speculative
from specdraft.bench.shapes import fullest
from specdraft.decoding import BlockPolicy, Request, RequestResult, SamplingParams
from specdraft.decoding.tuned import ALL
from specdraft.metrics.functional import prefix_counts, prefix_ratios

# a workload with fewer prompts than this for every row is decoded more than once, to keep the rows full for a while
PROMPTS_PER_ROW = 2


@dataclass(frozen=True)
class Way:
    """One way to decode in the check run.

    Attributes:
        size: Largest block size.
        policy: Makes the policy.
        name: Name of the policy, None for a fixed block size.
    """

    size: int
    policy: Callable[[], BlockPolicy]
    name: str | None = None

    @property
    def key(self) -> int | str:
        """Name of the policy, or the block size."""
        return self.size if self.name is None else self.name


class Meter:
    """Measures one checkpoint at one temperature.

    Args:
        setup: Checkpoints and prompts.
        path: The checkpoint.
        params: How tokens are drawn.
        journal: Where finished measurements are kept.
        seed: Seed of the sampling.
    """

    def __init__(self, setup: Setup, path: str, params: SamplingParams, journal: Journal, seed: int) -> None:
        self.setup, self.path, self.params, self.journal, self.seed = setup, path, params, journal, seed
        self.module = setup.modules[path]
        # the loop without drafts is measured anew beside the latencies of every checkpoint
        self._own = "" if path == next(iter(setup.modules)) else f"/{setup.labels[path]}"

    def survival(self, sizes: Sequence[int], nested: bool, rows: int) -> dict[str, dict[int, list[float]]]:
        """Survival curves ``S_1..S_K`` by workload and block size, over all prompts.

        Args:
            sizes: Block sizes.
            nested: Measure the largest block only; the curve of a smaller one is its beginning.
            rows: Requests in flight; survival does not depend on it, time does.
        """
        first = self.module.drafter.first_slot
        out: dict[str, dict[int, list[float]]] = {}
        for size in [max(sizes)] if nested else sizes:
            results = self._run(size, fixed(size), rows, self.setup.requests, "survival").results
            for workload, own in by_workload(results, self.setup.families).items():
                out.setdefault(workload, {})[size] = survival_curve(own, size - first)
        if nested:
            longest = max(sizes)
            out = {name: {size: curves[longest][: size - first] for size in sizes} for name, curves in out.items()}
        return out

    def latency(
        self, sizes: Sequence[int], levels: Sequence[int], repeats: int
    ) -> tuple[dict[int, dict[int, float]], dict[int, float]]:
        """Median seconds of a round by block size and concurrency, and of an autoregressive step, all rows busy.

        The repeats go round all configurations, so that a machine that slows down does so for all of them.

        Args:
            sizes: Block sizes.
            levels: Concurrencies.
            repeats: Decodes of every configuration, at least 1.
        """
        found: dict[tuple[int, int], list[float]] = {}
        for turn in range(repeats):
            for rows in levels:
                # nothing but the limit ends a row, or a short answer would leave the batch before anything is measured
                requests = [replace(r, stop_ids=()) for r in taken(self.setup.requests, turn * rows, rows)]
                part = f"latency-{turn}"
                jobs = {size: self._job(size, fixed(size), rows, part) for size in sizes}
                for size, job in {0: self._plain(rows, f"{part}{self._own}"), **jobs}.items():
                    (run,) = self._measured([job], requests)
                    shapes = [shape for shape in run.totals["shapes"] if shape["rows"] == rows]
                    found.setdefault((size, rows), []).append(median(shape["median_seconds"] for shape in shapes))
        middle = {key: median(values) for key, values in found.items()}
        plain = {rows: middle[0, rows] for rows in levels}
        return {size: {rows: middle[size, rows] for rows in levels} for size in sizes}, plain

    def check(
        self, rows: int, ways: Sequence[Way]
    ) -> tuple[dict[int | str, dict[str, Throughput]], dict[str, Throughput]]:
        """Measured throughput with full rows, by way and workload, and of ``all`` together.

        The ways and the lean autoregressive loop take turns within a workload.

        Args:
            rows: Requests in flight.
            ways: What is compared.

        Returns:
            The throughputs, and those of the autoregressive loop by workload.
        """
        keys: list[int | str] = [way.key for way in ways]
        counted: dict[int | str, dict[str, list[dict[str, Any]]]] = {key: {} for key in [AR, *keys]}
        for workload in sorted(set(self.setup.families)):
            own = [request for request in self.setup.requests if request.workload == workload]
            requests = taken(own, 0, max(len(own), PROMPTS_PER_ROW * rows))
            part = f"check-{workload}"
            jobs = [self._plain(rows, part), *(self._job(way.size, way.policy, rows, part, way.name) for way in ways)]
            for key, run in zip(counted, self._measured(jobs, requests), strict=True):
                counted[key][workload] = fullest(run.totals["shapes"])
        found = {key: pooled(shapes) for key, shapes in counted.items()}
        return {key: found[key] for key in keys}, found[AR]

    def _run(
        self, size: int, policy: Callable[[], BlockPolicy], rows: int, requests: Sequence[Request], part: str
    ) -> Measurement:
        return self._measured([self._job(size, policy, rows, part)], requests)[0]

    def _plain(self, rows: int, part: str) -> Job:
        """The lean autoregressive loop."""
        cell = Cell(AR, rows, self.params.temperature, part=part)
        return Job(cell, partial(autoregressive, self.setup.target, self.params, rows, self.seed))

    def _job(self, size: int, policy: Callable[[], BlockPolicy], rows: int, part: str, name: str | None = None) -> Job:
        cell = Cell(self.setup.labels[self.path], rows, self.params.temperature, size, self.path, name, part)
        return Job(cell, partial(speculative, self.module, self.params, rows, policy, self.seed))

    def _measured(self, jobs: Sequence[Job], requests: Sequence[Request]) -> list[Measurement]:
        runs = measure(jobs, requests, self.journal, self.setup.target.device)
        for run in runs:
            if not run.totals["shapes"]:
                raise ValueError(
                    f"no round was decoded in {run.cell.title} ({run.cell.part}): every answer ends with its first "
                    "token; give other prompts"
                )
        return runs


def by_workload(results: Sequence[RequestResult], families: Sequence[str]) -> dict[str, list[RequestResult]]:
    """Results of every workload, and of ``all``."""
    out: dict[str, list[RequestResult]] = {name: [] for name in sorted(set(families))}
    for result, family in zip(results, families, strict=True):
        out[family].append(result)
    return {**out, ALL: list(results)}


def survival_curve(results: Iterable[RequestResult], drafts: int) -> list[float]:
    """``S_1..S_K``, the share of rounds with at least k accepted drafts, so that their sum is ``mat_drafts``.

    Args:
        results: Decoded requests.
        drafts: Drafts K of a round.
    """
    accepted = torch.tensor([count for result in results for count in result.accepted], dtype=torch.int64)
    offered, accepted_at, _ = prefix_counts(accepted, None, drafts)
    return prefix_ratios(offered, accepted_at, torch.tensor(accepted.numel()))[0].tolist()


def taken(requests: Sequence[Request], start: int, count: int) -> list[Request]:
    """``count`` requests from ``start`` on, beginning anew at the end."""
    return [requests[(start + i) % len(requests)] for i in range(count)]


@dataclass(frozen=True)
class Throughput:
    """What rounds with full rows gave.

    Attributes:
        tokens_per_second: Tokens of all rows per second, prefill apart.
        mat: Tokens per row and round.
        seconds: Mean seconds of a round.
    """

    tokens_per_second: float
    mat: float
    seconds: float


def throughput(shapes: Iterable[Mapping[str, Any]]) -> Throughput:
    """Sum rounds up; all zero without rounds.

    Args:
        shapes: See :func:`specdraft.bench.shapes.round_shapes`.
    """
    tokens = seconds = rounds = row_rounds = 0.0
    for shape in shapes:
        tokens += shape["tokens"]
        seconds += shape["seconds"]
        rounds += shape["rounds"]
        row_rounds += shape["rounds"] * shape["rows"]
    if not rounds or not seconds:
        return Throughput(0.0, 0.0, 0.0)
    return Throughput(tokens / seconds, tokens / row_rounds, seconds / rounds)


def pooled(shapes: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Throughput]:
    """Throughput of every workload, and of ``all``: tokens of all over seconds of all.

    Args:
        shapes: Workload to the rounds that count.
    """
    out = {workload: throughput(own) for workload, own in shapes.items()}
    return {**out, ALL: throughput(shape for own in shapes.values() for shape in own)}
