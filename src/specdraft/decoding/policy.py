"""Policies: which block size the next round drafts with.

Every policy is lossless. A choice depends on earlier rounds only, never on the drafts that it is about, so that it is
one more quantity fixed before the drafts are drawn, as ``limit`` is in :func:`specdraft.decoding.verify`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from typing_extensions import Self, override

from specdraft.decoding.tuned import ALL, Choices, TunedTables


class BlockPolicy(ABC):
    """Asked by the engine for the block size of every round.

    Attributes:
        sizes: All block sizes that :meth:`choose` may answer, ascending; the engine prepares itself for these.
    """

    sizes: tuple[int, ...]

    @abstractmethod
    def choose(self, live: Sequence[str], rows: int) -> int:
        """Block size of the next round, one of :attr:`sizes`.

        Args:
            live: Workload of every request in flight, at least one.
            rows: Rows of the batch, those included that have ended and stay.
        """

    def observe(self, workload: str, size: int, drafted: int, accepted: int) -> None:  # noqa: B027  (most need not look)
        """Learn how a round went for one request.

        Args:
            workload: Workload of the request.
            size: Block size of the round.
            drafted: Drafts that could have been accepted (fewer than K at a length limit).
            accepted: Accepted drafts.
        """


class TunedPolicy(BlockPolicy):
    """A policy that can be made from what ``specdraft tune`` measured."""

    @classmethod
    @abstractmethod
    def from_tables(cls, tables: TunedTables) -> Self:
        """Make the policy from measured tables."""


class FixedBlock(BlockPolicy):
    """The same block size in every round.

    Args:
        size: Input slots of a block.
    """

    def __init__(self, size: int) -> None:
        self.sizes = (size,)

    @override
    def choose(self, live: Sequence[str], rows: int) -> int:
        return self.sizes[0]


class StaticTable(TunedPolicy):
    """The block size that was chosen beforehand for the workload and the concurrency.

    A number of rows that the table lacks is decoded like the nearest one by ratio. Requests of different workloads in
    one batch, or of one that the table lacks, are decoded like ``all``.

    Args:
        choices: Workload to concurrency to block size; ``all`` must be among the workloads.

    Raises:
        ValueError: If there is no ``all``, or a workload has no choice.
    """

    def __init__(self, choices: Choices) -> None:
        if ALL not in choices or not all(choices.values()):
            raise ValueError(f"choices must hold {ALL!r} and a block size for every workload, got {dict(choices)}")
        self._choices = choices
        self.sizes = tuple(sorted({size for levels in choices.values() for size in levels.values()}))

    @classmethod
    @override
    def from_tables(cls, tables: TunedTables) -> Self:
        return cls(tables.choices)

    @override
    def choose(self, live: Sequence[str], rows: int) -> int:
        workload = live[0] if live[0] in self._choices and live.count(live[0]) == len(live) else ALL
        levels = self._choices[workload]
        if rows in levels:
            return levels[rows]
        return levels[min(levels, key=lambda level: (max(level / rows, rows / level), level))]


class RunningSurvival(TunedPolicy):
    """The block size with most expected tokens per second, by the acceptance seen so far and the measured latencies.

    Each round takes ``argmax_B sum_r mat_r(B) / latency(B, rows)`` over the requests r in flight. ``mat`` comes from
    the conditional acceptance of each draft position: of the drafts whose predecessors were accepted, the share that
    was accepted too, which short rounds and length limits do not bias (the product-limit estimator). Each share starts
    at the tuned one with the weight of ``prior`` rounds. So that a position which short blocks never reach is not
    stuck there, what is started from follows the rest: all tuned rejection rates are multiplied by the ratio of the
    rejections seen to those that the tuned rates predict (proportional hazards). Old rounds are forgotten. Survival is
    kept per workload, and per block size where it is not nested. The state outlives a decode, so that a policy goes
    on learning when it is used again.

    Args:
        tables: What was measured.
        window: Rounds of a workload after which an observation has lost 63 % of its weight.
        prior: Weight of the tuned acceptance, in rounds.

    Raises:
        ValueError: If a number is not positive.
    """

    def __init__(self, tables: TunedTables, window: float = 256.0, prior: float = 32.0) -> None:
        if window < 1 or prior <= 0:
            raise ValueError(f"window must be at least 1 and prior positive, got {window} and {prior}")
        self.sizes = tables.sizes
        self._tables = tables
        self._keep = 1 - 1 / window
        self._prior = prior
        self._workloads: dict[str, dict[int, _Acceptance]] = {}
        self._mats: dict[str, dict[int, float]] = {}

    @classmethod
    @override
    def from_tables(cls, tables: TunedTables) -> Self:
        return cls(tables)

    @override
    def choose(self, live: Sequence[str], rows: int) -> int:
        counts = [(self._mat(workload), count) for workload, count in Counter(live).items()]

        def rate(size: int) -> float:
            return sum(count * mat[size] for mat, count in counts) / self._tables.seconds(size, rows)

        return max(self.sizes, key=rate)  # the smaller of equals: max keeps the first

    @override
    def observe(self, workload: str, size: int, drafted: int, accepted: int) -> None:
        curves = self._curves(workload)
        for curve in set(curves.values()):
            curve.forget(self._keep)
        curves[size].add(drafted, accepted)
        self._mats.pop(workload, None)

    def survival(self, workload: str, size: int) -> list[float]:
        """Present estimate of ``S_1..S_K`` for rounds of a block size."""
        return self._curves(workload)[size].survival(self._prior)[: len(self._tables.curves(workload)[size])]

    def _mat(self, workload: str) -> dict[int, float]:
        if workload not in self._mats:
            self._mats[workload] = {size: 1 + sum(self.survival(workload, size)) for size in self.sizes}
        return self._mats[workload]

    def _curves(self, workload: str) -> dict[int, _Acceptance]:
        """Counts by block size, the same object for all of them where survival is nested."""
        if workload not in self._workloads:
            tuned = self._tables.curves(workload)
            shared = _Acceptance(tuned[self.sizes[-1]])
            self._workloads[workload] = {
                size: shared if self._tables.nested else _Acceptance(tuned[size]) for size in self.sizes
            }
        return self._workloads[workload]


class _Acceptance:
    """Decayed counts of offered and accepted drafts by position, on top of the rejection rates they start from."""

    def __init__(self, survival: Sequence[float]) -> None:
        self._rejection: list[float] = []
        before = 1.0
        for now in survival:
            # a position that was never reached is taken to be like the one before it
            self._rejection.append(1 - now / before if before else self._rejection[-1])
            before = now
        self._offered = [0.0] * len(survival)
        self._accepted = [0.0] * len(survival)

    def forget(self, keep: float) -> None:
        self._offered = [keep * count for count in self._offered]
        self._accepted = [keep * count for count in self._accepted]

    def add(self, drafted: int, accepted: int) -> None:
        # a policy of the other slot convention knows one position less
        for k in range(min(drafted, accepted + 1, len(self._offered))):
            self._offered[k] += 1
            self._accepted[k] += k < accepted

    def survival(self, prior: float) -> list[float]:
        predicted = sum(map(mul, self._offered, self._rejection))
        ratio = (sum(self._offered) - sum(self._accepted) + prior) / (predicted + prior)
        shares = [
            (yes + prior * max(0.0, 1 - ratio * rate)) / (seen + prior)
            for yes, seen, rate in zip(self._accepted, self._offered, self._rejection, strict=True)
        ]
        return list(accumulate(shares, mul))
