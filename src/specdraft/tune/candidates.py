"""A checkpoint as far as tune has measured it, and the choice among several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdraft.bench.setup import check_blocks, numbers
from specdraft.decoding import TunedTables
from specdraft.decoding.tuned import ALL
from specdraft.module import DraftingModule
from specdraft.tune.measuring import Meter
from specdraft.tune.prediction import Grid, best_blocks, geometric_mean, predicted_grid
from specdraft.tune.search import unimodal_best


@dataclass(frozen=True)
class Candidate:
    """Tables of one checkpoint.

    Attributes:
        path: The checkpoint.
        depth: Decoder layers of its drafter.
        tables: One per temperature.
        plain: Seconds of an autoregressive step by concurrency, measured among the latencies; one per temperature.
    """

    path: str
    depth: int
    tables: tuple[TunedTables, ...]
    plain: tuple[dict[int, float], ...]

    @property
    def grids(self) -> list[Grid]:
        """Predicted tokens per second, one grid per temperature."""
        return [predicted_grid(table.survival, table.latency) for table in self.tables]

    @property
    def score(self) -> float:
        """Geometric mean over temperatures and concurrencies of the predicted rate on all prompts, best block each."""
        return geometric_mean([max(r.values()) for grid in self.grids for (name, _), r in grid.items() if name == ALL])


def measure_candidate(
    meters: Sequence[Meter], sizes: list[int] | None, levels: Sequence[int], repeats: int, remeasure: bool
) -> Candidate:
    """Measure survival and latency of a checkpoint and choose its block sizes.

    Args:
        meters: One per temperature, all of one checkpoint.
        sizes: Block sizes; None takes quarters of the trained one.
        levels: Concurrencies.
        repeats: Decodes per latency.
        remeasure: Measure survival for every block size, even where the trained horizons make that superfluous.
    """
    path, module = meters[0].path, meters[0].module
    blocks = sorted(check_blocks(path, module, numbers("block_sizes", sizes, default_blocks(module))))
    nested = not remeasure and survival_is_nested(module)
    tables, steps = [], []
    for meter in meters:
        survival = meter.survival(blocks, nested, max(levels))
        latency, plain = meter.latency(blocks, levels, repeats)
        steps.append(plain)
        choices = best_blocks(predicted_grid(survival, latency))
        tables.append(TunedTables(meter.params.temperature, survival, latency, choices, nested))
    return Candidate(path, depth_of(module), tuple(tables), tuple(steps))


def choose_candidate(depths: Sequence[int], measure: Callable[[int], Candidate], every: bool) -> list[Candidate]:
    """Measure checkpoints until the best is known, best first.

    Args:
        depths: Depths of the drafters, ascending.
        measure: Measures the checkpoint of an index.
        every: Measure all of them; so it is too when depths are equal, since nothing says that they have one peak.
    """
    done: dict[int, Candidate] = {}

    def score(index: int) -> float:
        done[index] = measure(index)
        return done[index].score

    if every or len(set(depths)) < len(depths):
        scores = {index: score(index) for index in range(len(depths))}
    else:
        scores = unimodal_best(len(depths), score)
    return [done[index] for index in sorted(scores, key=lambda index: (-scores[index], index))]


def default_blocks(module: DraftingModule) -> list[int]:
    """Quarters of the trained block size, those that draft at least one token: 4, 8, 12, 16 for 16."""
    own, low = module.drafter.block_size, module.drafter.first_slot + 1
    return sorted({max(low, math.ceil(own * quarter / 4)) for quarter in (1, 2, 3, 4)})


def survival_is_nested(module: DraftingModule) -> bool:
    """Whether a short block accepts like the beginning of a long one.

    So it is for a drafter that was trained with several horizons, to the degree that the training succeeded (the check
    run shows it), and exactly for a causal one, whose slots do not see later slots.
    """
    drafter = module.drafter
    horizons = module.objective.inclusion.trained_horizons(drafter.block_size, drafter.first_slot)
    # the objective of a run that trained the corrector alone says nothing of the drafter
    mixed = module.train_drafter and len(horizons) > 1
    return mixed or bool(getattr(drafter, "causal", False))


def depth_of(module: DraftingModule) -> int:
    """Decoder layers of a drafter; its parameters where it does not name its layers."""
    layers = getattr(module.drafter, "layers", None)
    return len(layers) if layers is not None else sum(p.numel() for p in module.drafter.parameters())
