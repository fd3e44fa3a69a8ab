"""The estimate of a step equals what the allocator hands out in a real one, part by part of the design."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from specdraft.correctors import DCOCO, DominoCorrector, MarkovCorrector, NoCorrector, SelectorCorrector
from specdraft.drafters import DFlash
from specdraft.estimate import AllocationPeak, StepShape, step_cost
from specdraft.module import DraftingModule
from specdraft.objectives import AcceptanceWeighted, CrossEntropy, Objective, TotalVariation, frozen_head_loss
from specdraft.targets import FrozenHead, TargetConfig
from specdraft.types import DraftBatch, TargetSpec

SPEC = TargetSpec("toy", 128, 4096, 12, 8, 2, 16, 384)
ROWS, LENGTH, ANCHORS, BLOCK = 2, 96, 16, 8
HELD = ("drafter weights", "corrector weights", "optimizer state", "features")


def module(corrector: Any, **objective: Any) -> DraftingModule:
    drafter = partial(DFlash, num_layers=2, block_size=BLOCK)
    made = Objective(num_anchors=ANCHORS, chunk_size=32, **objective)
    return DraftingModule(TargetConfig("toy"), drafter, corrector, made, matmul_precision="highest")


def real_peak(made: DraftingModule, frozen: bool = False) -> int:
    """Bytes that forward and backward of a real step hold at once."""
    weight = torch.randn(SPEC.vocab_size, SPEC.hidden_size)
    made.target = SimpleNamespace(  # type: ignore[assignment]
        spec=SPEC, head=FrozenHead(weight, pack=False), embed=lambda ids: F.embedding(ids, weight)
    )
    made._build([])
    made.train()
    ids = torch.randint(SPEC.vocab_size, (ROWS, LENGTH))
    where = torch.arange(LENGTH).expand(ROWS, LENGTH)
    batch = DraftBatch(
        ids, torch.ones_like(ids) > 0, torch.zeros_like(ids), where, torch.randn(ROWS, LENGTH, SPEC.feature_size)
    )
    if made.needs_last_hidden:
        batch.last_hidden = torch.randn(ROWS, LENGTH, SPEC.hidden_size)
    anchors = torch.linspace(0, LENGTH - BLOCK - 2, ANCHORS).long().expand(ROWS, ANCHORS)
    blocks = made.objective.inclusion.build(
        batch, anchors, anchors >= 0, block_size=BLOCK, first_slot=1, mask_token_id=0, generator=None
    )

    def step() -> None:
        made._corrected(batch, blocks)[0].numerator.backward()

    step()
    made.zero_grad(set_to_none=True)
    with AllocationPeak() as peak:
        step()
    return peak.bytes


@pytest.mark.parametrize(
    ("corrector", "objective", "tolerance"),
    [
        (NoCorrector, {}, 0.03),
        (NoCorrector, {"weighting": AcceptanceWeighted("overlap"), "prediction": TotalVariation()}, 0.05),
        (partial(MarkovCorrector, rank=32), {}, 0.05),
        (partial(DCOCO, candidates=8), {}, 0.15),  # how many candidates differ is not known: the most possible
        (partial(DominoCorrector, hidden=64, rank=32), {}, 0.1),
        (partial(SelectorCorrector, candidates=8, rank=32), {}, 0.1),
    ],
    ids=["plain", "soft", "markov", "dcoco", "domino", "selector"],
)
def test_estimated_peak_is_the_real_one(corrector: Any, objective: dict[str, Any], tolerance: float) -> None:
    real = real_peak(module(corrector, **objective))
    shape = StepShape(ROWS, LENGTH, ANCHORS, torch.float32, None, "cpu")
    cost = step_cost(module(corrector, **objective), SPEC, shape)
    guess = cost.total - sum(cost.peak.get(name, 0) for name in HELD)
    assert guess == pytest.approx(real, rel=tolerance)
    assert cost.peak["optimizer state"] == cost.state_bytes == 8 * cost.trainable


def test_frozen_drafter_costs_less_and_accumulation_more() -> None:
    shape = StepShape(ROWS, LENGTH, ANCHORS, torch.float32, None, "cpu")
    whole = step_cost(module(DCOCO), SPEC, shape)
    frozen = module(DCOCO)
    frozen.train_drafter = False
    alone = step_cost(frozen, SPEC, shape)
    assert alone.trainable == alone.corrector_parameters == whole.corrector_parameters
    assert alone.total < whole.total
    assert alone.flops < whole.flops
    second = step_cost(module(DCOCO), SPEC, StepShape(ROWS, LENGTH, ANCHORS, torch.float32, None, "cpu", True))
    assert second.total >= whole.total + 3.9 * whole.drafter_parameters


def test_products_are_counted() -> None:
    """Forward and backward of the linear layers and the head; attention is the rest."""
    cost = step_cost(module(NoCorrector), SPEC, StepShape(ROWS, LENGTH, ANCHORS, torch.float32, None, "cpu"))
    slots, tokens = ROWS * ANCHORS * BLOCK, ROWS * LENGTH
    h, kv, inner = SPEC.hidden_size, 2 * 2 * 16, SPEC.intermediate_size
    layer = slots * (2 * h * h + h * kv + 3 * h * inner) + tokens * h * kv
    linear = 6 * (2 * layer + tokens * SPEC.feature_size * h) - 2 * tokens * SPEC.feature_size * h
    head = 4 * ROWS * ANCHORS * (BLOCK - 1) * h * SPEC.vocab_size
    assert linear + head < cost.flops < 1.1 * (linear + head)


def loss_peak(vocabulary: int, chunk: int, positions: int) -> int:
    hidden = torch.randn(positions, 32, requires_grad=True)
    head = FrozenHead(torch.randn(vocabulary, 32), pack=False)
    rows = torch.randint(vocabulary, (positions,))
    with AllocationPeak() as peak:
        frozen_head_loss(hidden, head, rows, CrossEntropy(), None, None, chunk).loss.sum().backward()
    return peak.bytes


def test_memory_of_the_loss_is_that_of_a_chunk_whatever_the_vocabulary() -> None:
    elements = 2**17
    peaks = [loss_peak(vocabulary, elements // vocabulary, 512) for vocabulary in (1024, 4096, 16384)]
    assert max(peaks) < 1.05 * min(peaks)
    assert max(peaks) < 0.2 * 512 * 16384 * 4  # whole logits would not fit
    # beside the chunk only what is kept per position grows with the positions
    assert loss_peak(4096, 32, 2048) - loss_peak(4096, 32, 512) < 1.2 * (2048 - 512) * (3 * 32 + 12) * 4
