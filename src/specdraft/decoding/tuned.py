"""What was measured of a drafter at one temperature: survival, latency, and the block sizes that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALL = "all"
Survival = Mapping[str, Mapping[int, Sequence[float]]]
Latency = Mapping[int, Mapping[int, float]]
Choices = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class TunedTables:
    """Survival curves, round latencies and chosen block sizes at one temperature (DESIGN 9).

    Attributes:
        temperature: Sampling temperature that they hold for.
        survival: Workload to block size to ``S_1..S_K``, the probabilities of at least k accepted drafts.
        latency: Block size to rows of the batch to seconds of a round.
        choices: Workload to concurrency to block size.
        nested: Whether survival does not depend on the block size, so that a round with a small block tells about the
            first drafts of a large one; true for drafters that were trained with mixed horizons.

    Raises:
        ValueError: If a workload or a block size lacks a value, or ``all`` is missing.
    """

    temperature: float
    survival: Survival
    latency: Latency
    choices: Choices
    nested: bool = True

    def __post_init__(self) -> None:
        if not self.latency or any(not rows for rows in self.latency.values()):
            raise ValueError("latency must hold at least one block size, each with at least one concurrency")
        for name, table in (("survival", self.survival), ("choices", self.choices)):
            if not table.get(ALL):
                raise ValueError(f"{name} has no workload {ALL!r}; it is what unknown workloads are decoded by")
        for workload, curves in self.survival.items():
            if missing := sorted(set(self.latency) - set(curves)):
                raise ValueError(f"survival of {workload!r} lacks block size {missing[0]}, which latency has")
        for workload, levels in self.choices.items():
            if unknown := sorted(set(levels.values()) - set(self.latency)):
                raise ValueError(f"choices of {workload!r} name block size {unknown[0]}, which latency does not have")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Block sizes that were measured, ascending."""
        return tuple(sorted(self.latency))

    def curves(self, workload: str) -> Mapping[int, Sequence[float]]:
        """Survival by block size of a workload; that of all together for one that was not measured."""
        return self.survival.get(workload, self.survival[ALL])

    def mat(self, workload: str, size: int) -> float:
        """Mean tokens per round with the bonus token, ``1 + sum_k S_k``."""
        return 1 + sum(self.curves(workload)[size])

    def seconds(self, size: int, rows: int) -> float:
        """Latency of a round with ``rows`` rows: linear between measured numbers of rows, constant outside of them."""
        known = self.latency[size]
        if rows in known:
            return known[rows]
        low = max((n for n in known if n < rows), default=min(known))
        high = min((n for n in known if n > rows), default=max(known))
        if low >= high:  # outside
            return known[max(known) if rows > max(known) else min(known)]
        return known[low] + (known[high] - known[low]) * (rows - low) / (high - low)

    def tokens_per_second(self, workload: str, size: int, rows: int) -> float:
        """Predicted throughput of ``rows`` requests of one workload, prefill apart: ``rows * mat / latency``."""
        return rows * self.mat(workload, size) / self.seconds(size, rows)
