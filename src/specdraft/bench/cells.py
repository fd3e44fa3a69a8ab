"""One cell of the benchmark: what is decoded how, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import torch

from specdraft.bench.journal import Journal, Share
from specdraft.bench.latency import (
    first_token_seconds,
    inter_token_seconds,
    percentiles,
    round_gaps,
    stream_tokens_per_second,
)
from specdraft.bench.memory import PeakMemory
from specdraft.bench.shapes import round_shapes
from specdraft.decoding import DecodeResult, OnFinish, Request, RequestResult
from specdraft.decoding.alternation import TURNS, in_turn, joined, shares

Decode: TypeAlias = Callable[[list[Request], OnFinish], DecodeResult]
AR, HF = "AR", "hf-generate"
WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Cell:
    """One way to decode the prompts.

    Attributes:
        method: ``AR``, ``hf-generate``, or the label of a checkpoint.
        concurrency: Requests in flight.
        temperature: Sampling temperature.
        block_size: Block size of the drafts, None where nothing is drafted.
        checkpoint: Path of the checkpoint, None where nothing is drafted.
        policy: Name of the policy that chooses the block sizes up to ``block_size``, None where that is fixed.
        part: What the cell is measured for, where several decode alike.
    """

    method: str
    concurrency: int
    temperature: float
    block_size: int | None = None
    checkpoint: str | None = None
    policy: str | None = None
    part: str = ""

    @property
    def key(self) -> str:
        """Unique within a benchmark."""
        block = "" if self.block_size is None else f"/{self.policy or f'b{self.block_size}'}"
        part = self.part and f"/{self.part}"
        return f"{self.checkpoint or self.method}{block}/c{self.concurrency}/t{self.temperature:g}{part}"

    @property
    def title(self) -> str:
        """Method and block size, as tables name them."""
        return self.method if self.block_size is None else f"{self.method}, {self.policy or f'B={self.block_size}'}"


@dataclass
class Measurement:
    """A cell, the continuation of every prompt, and the totals of the decoding loop."""

    cell: Cell
    results: list[RequestResult]
    totals: dict[str, Any]

    @property
    def tokens_per_second(self) -> float:
        """Tokens that decoding emitted per second of decoding; prefills and first tokens are left out."""
        seconds = self.totals["decode_seconds"]
        return self.totals["timed_tokens"] / seconds if seconds else 0.0


@dataclass
class Job:
    """A cell to measure.

    Attributes:
        cell: What is measured.
        start: Makes what decodes, anew for the warm-up, so that nothing which learns or draws has done so before.
    """

    cell: Cell
    start: Callable[[], Decode]


def measure(
    jobs: Sequence[Job], requests: Sequence[Request], journal: Journal, device: torch.device
) -> list[Measurement]:
    """Decode the prompts in the way of every cell, but for the shares that an interrupted run finished.

    The cells take turns (see :func:`specdraft.decoding.alternation.alternately`), after a warm-up of each. A share that
    was interrupted is decoded again as a whole: seconds belong to all of its prompts or to none.

    Args:
        jobs: What is measured, all at one concurrency.
        requests: All prompts.
        journal: Where finished prompts and totals are kept.
        device: Device of the target.
    """
    running = [_Running(job.cell, requests, journal) for job in jobs]
    open_jobs = [(job, state) for job, state in zip(jobs, running, strict=True) if journal.totals(job.cell.key) is None]
    for job, _ in open_jobs:
        # weights are packed and kernels chosen before the clock runs
        few = [
            replace(r, max_new_tokens=min(WARM_UP_TOKENS, r.max_new_tokens)) for r in requests[: job.cell.concurrency]
        ]
        job.start()(few, lambda *_: None)
    decodes = [job.start() for job, _ in open_jobs]
    for turn in range(TURNS):
        for which in in_turn(len(open_jobs), turn):
            open_jobs[which][1].advance(turn, decodes[which], device)
    for _, state in open_jobs:
        state.close()
    return [Measurement(state.cell, state.results(), state.totals()) for state in running]


class _Running:
    """A cell while its prompts are decoded."""

    def __init__(self, cell: Cell, requests: Sequence[Request], journal: Journal) -> None:
        self.cell, self.requests, self.journal = cell, requests, journal
        places = range(len(requests))
        self.shares = [places[share] for share in shares(len(requests), cell.concurrency)]

    def advance(self, turn: int, decode: Decode, device: torch.device) -> None:
        """Decode the share of a turn, if there is one that is not finished."""
        if turn >= len(self.shares) or self.journal.share(self.cell.key, self.shares[turn]) is not None:
            return
        places = self.shares[turn]
        with PeakMemory(device) as peak:
            out = decode(
                [self.requests[i] for i in places],
                lambda place, result: self.journal.request(self.cell.key, places[place], result),
            )
        self.journal.finish(self.cell.key, places, Share.of(out, peak.mib, peak.kind))

    def results(self) -> list[RequestResult]:
        """The continuation of every prompt of a cell that has been closed."""
        done = self.journal.finished(self.cell.key)
        return [done[i] for i in range(len(self.requests))]

    def close(self) -> None:
        """Write the totals."""
        found = [self.journal.share(self.cell.key, places) for places in self.shares]
        ended = [share for share in found if share is not None]
        out = joined([share.timed() for share in ended])
        out.results = self.results()
        known = [share.peak_memory_mib for share in ended if share.peak_memory_mib is not None]
        self.journal.close(
            self.cell.key,
            {
                "timed_tokens": out.emitted - len(out.results),
                "timed_rounds": out.rounds,
                "steps": out.steps,
                "shapes": round_shapes(out.log),
                "prefill_seconds": out.prefill_seconds,
                "decode_seconds": out.decode_seconds,
                "timing": asdict(out.timing),
                "peak_memory_mib": max(known, default=None),
                "memory_kind": ended[0].memory_kind,
            },
        )

    def totals(self) -> dict[str, Any]:
        """Totals of the cell, which has been closed."""
        found = self.journal.totals(self.cell.key)
        assert found is not None
        return found


def summary(run: Measurement, baseline: Measurement, families: Sequence[str]) -> dict[str, Any]:
    """Everything that is reported of a cell, as builtins.

    Args:
        run: The cell.
        baseline: The lean autoregressive loop at the same concurrency and temperature.
        families: Family of each prompt.
    """
    pooled = DecodeResult(run.results)
    totals, steps = run.totals, max(run.totals["steps"], 1)
    drafts = run.cell.block_size is not None
    ms = {part: 1e3 * seconds / steps for part, seconds in totals["timing"].items()}
    greedy = run.cell.temperature == 0
    return {
        **asdict(run.cell),
        "prompts": len(run.results),
        "emitted": pooled.emitted,
        "rounds": pooled.rounds,
        "mean_rows": totals["timed_rounds"] / steps,
        "mat": pooled.mat if drafts else None,
        "mat_drafts": pooled.mat_drafts if drafts else None,
        "mat_prompt_mean": pooled.mat_prompt_mean if drafts else None,
        "tokens_per_second": run.tokens_per_second,
        "speedup": _ratio(run.tokens_per_second, baseline.tokens_per_second),
        "prefill_seconds": totals["prefill_seconds"],
        "decode_seconds": totals["decode_seconds"],
        "round_ms": {**ms, "total": sum(ms.values())},
        "ttft_ms": _ms(first_token_seconds(run.results)),
        "itl_ms": _ms(inter_token_seconds(run.results)),
        "round_gap_ms": _ms(round_gaps(run.results)),
        "peak_memory_mib": totals["peak_memory_mib"],
        "memory_kind": totals["memory_kind"],
        "lossless": equal_rate(run.results, baseline.results) if greedy and run is not baseline else None,
        "families": _by_family(run, baseline, families),
    }


def equal_rate(mine: Sequence[RequestResult], theirs: Sequence[RequestResult]) -> float:
    """Fraction of outputs that are equal token for token."""
    return sum(a.tokens == b.tokens for a, b in zip(mine, theirs, strict=True)) / len(mine)


def _by_family(run: Measurement, baseline: Measurement, families: Sequence[str]) -> dict[str, dict[str, Any]]:
    out = {}
    for family in sorted(set(families)):
        own = [r for r, name in zip(run.results, families, strict=True) if name == family]
        plain = [r for r, name in zip(baseline.results, families, strict=True) if name == family]
        rate, reference = stream_tokens_per_second(own), stream_tokens_per_second(plain)
        pooled, drafts = DecodeResult(own), run.cell.block_size is not None
        out[family] = {
            "prompts": len(own),
            "mat": pooled.mat if drafts else None,
            "mat_prompt_mean": pooled.mat_prompt_mean if drafts else None,
            "stream_tokens_per_second": rate,
            "speedup": _ratio(rate, reference),
        }
    return out


def _ratio(mine: float | None, theirs: float | None) -> float | None:
    return mine / theirs if mine is not None and theirs else None


def _ms(seconds: list[float]) -> dict[str, float | None]:
    return percentiles([1e3 * value for value in seconds])
