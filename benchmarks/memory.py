"""Peak memory of a training step at Qwen3-8B shapes: the estimate against measured, scaled-down runs, extrapolated.

    python benchmarks/memory.py

Widths, vocabulary, tokens, anchors and the chunk of the loss are scaled by 1/16, 1/8 and 1/4, layers and block size are
kept (5 layers, blocks of 16, one row). Everything that a step allocates is then a polynomial of second degree in the
scale: weights and activations grow with its square, masks and chunks of scores with lower powers. Three measured peaks
fix it, and its value at scale 1 is compared with ``specdraft estimate`` for the same step (fp32, CPU kernels). What the
allocator hands out is counted event by event, so that the figures are exact and the same in every run. Weights,
features and optimizer state are left out on both sides: they are known, and would hide an error.

The second table shows that the peak of the frozen-head loss does not depend on the vocabulary at a fixed size of the
logits of a chunk, and grows with the chunk and not with the number of positions.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from measure import machine, table
from torch import Tensor
from torch.nn import functional as F

from specdraft.correctors import DCOCO, DominoCorrector, MarkovCorrector, NoCorrector, SelectorCorrector
from specdraft.drafters import DFlash
from specdraft.estimate import AllocationPeak, StepShape, step_cost
from specdraft.module import DraftingModule
from specdraft.objectives import CrossEntropy, Objective, frozen_head_loss
from specdraft.targets import FrozenHead, TargetConfig
from specdraft.types import DraftBatch, TargetSpec

CORRECTORS = {c.__name__: c for c in (NoCorrector, DCOCO, MarkovCorrector, DominoCorrector, SelectorCorrector)}
HELD = ("drafter weights", "corrector weights", "optimizer state", "features")
BLOCK, LAYERS = 16, 5


@dataclass
class RandomTarget:
    """Embedding and head of random numbers."""

    spec: TargetSpec
    head: FrozenHead

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the head."""
        return F.embedding(ids, self.head.weight)


def spec_at(scale: float) -> TargetSpec:
    sizes = [int(size * scale) for size in (4096, 151936, 128, 12288)]
    return TargetSpec("scaled", sizes[0], sizes[1], 36, 32, 8, sizes[2], sizes[3], max_position_embeddings=40960)


def module_at(scale: float, corrector: Any) -> DraftingModule:
    objective = Objective(num_anchors=int(512 * scale), chunk_size=int(512 * scale))
    drafter = partial(DFlash, num_layers=LAYERS, block_size=BLOCK)
    return DraftingModule(TargetConfig("scaled"), drafter, corrector, objective, matmul_precision="highest")


def estimated(scale: float, corrector: Any) -> int:
    shape = StepShape(1, int(3072 * scale), int(512 * scale), torch.float32, None, "cpu")
    cost = step_cost(module_at(scale, corrector), spec_at(scale), shape)
    return cost.total - sum(cost.peak.get(name, 0) for name in HELD)


def measured(scale: float, corrector: Any) -> int:
    torch.manual_seed(0)
    spec, length, anchors = spec_at(scale), int(3072 * scale), int(512 * scale)
    weight = torch.empty(spec.vocab_size, spec.hidden_size).normal_(std=0.02)
    module = module_at(scale, corrector)
    module.target = RandomTarget(spec, FrozenHead(weight, pack=False))  # type: ignore[assignment]
    module._build([])
    module.train()
    ids = torch.randint(spec.vocab_size, (1, length))
    mask = torch.ones_like(ids, dtype=torch.bool)
    batch = DraftBatch(
        ids, mask, torch.zeros_like(ids), torch.arange(length)[None], torch.randn(1, length, spec.feature_size)
    )
    if module.needs_last_hidden:
        batch.last_hidden = torch.randn(1, length, spec.hidden_size)
    where = torch.linspace(0, length - BLOCK - 2, anchors).long()[None]
    valid = torch.ones_like(where, dtype=torch.bool)
    blocks = module.objective.inclusion.build(
        batch, where, valid, block_size=BLOCK, first_slot=1, mask_token_id=0, generator=None
    )

    def step() -> None:
        module._corrected(batch, blocks)[0].numerator.backward()

    step()  # libraries set themselves up
    module.zero_grad(set_to_none=True)
    with AllocationPeak() as peak:
        step()
    return peak.bytes


def extrapolate(scales: list[float], values: list[float]) -> float:
    """Value at 1 of the parabola through three points."""
    powers = torch.tensor([[s * s, s, 1.0] for s in scales], dtype=torch.float64)
    return float(torch.linalg.solve(powers, torch.tensor(values, dtype=torch.float64)).sum())


def loss_peak(vocabulary: int, chunk: int, positions: int) -> float:
    """MiB that the frozen-head loss holds at once, forward and backward."""
    hidden = torch.randn(positions, 64, requires_grad=True)
    head = FrozenHead(torch.randn(vocabulary, 64), pack=False)
    rows = torch.randint(vocabulary, (positions,))
    with AllocationPeak() as peak:
        frozen_head_loss(hidden, head, rows, CrossEntropy(), None, None, chunk).loss.sum().backward()
    return peak.bytes / 2**20


def report(options: argparse.Namespace) -> list[str]:
    rows = []
    for name in options.corrector:
        peaks = [float(measured(scale, CORRECTORS[name])) for scale in options.scales]
        guesses = [float(estimated(scale, CORRECTORS[name])) for scale in options.scales]
        whole, guess = extrapolate(options.scales, peaks), float(estimated(1.0, CORRECTORS[name]))
        ratios = [f"{b / a:.3f}" for a, b in zip(peaks, guesses, strict=True)]
        rows.append([name, *ratios, whole / 2**30, guess / 2**30, guess / whole])
    heads = ["corrector", *(f"estimate / measured at {scale:g}" for scale in options.scales)]
    lines = [
        "### Memory of a training step at Qwen3-8B shapes (5 layers, 512 anchors, B=16, L=3072, fp32, CPU kernels)",
        "",
        *table([*heads, "extrapolated GiB", "estimated GiB", "estimated / extrapolated"], rows),
        "",
    ]
    budget = 2**20
    shapes = [(v, budget // v, n) for v in (4096, 16384, 65536) for n in (512, 1024)]
    peaks = [[v, c, n, loss_peak(v, c, n)] for v, c, n in shapes]
    return [*lines, *table(["V", "chunk", "positions", "peak MiB of the loss"], peaks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corrector", choices=list(CORRECTORS), nargs="+", default=["NoCorrector", "DCOCO"])
    parser.add_argument("--scales", type=float, nargs=3, default=[1 / 16, 1 / 8, 1 / 4])
    options = parser.parse_args()
    print(machine(), "", *report(options), sep="\n")


if __name__ == "__main__":
    main()
