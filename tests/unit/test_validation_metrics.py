"""What validation pools: names of families, weighted parts, sums that stay exact."""

from __future__ import annotations

import pytest
import torch

from specdraft.correctors.confidence import MAX_POSITIONS, ConfidenceHead
from specdraft.metrics import ConfidenceCounts
from specdraft.types import BlockBatch
from specdraft.validation import ValidationMetrics


def blocks_of(hits):
    """One row per entry with one block of three slots, of which slots 1 and 2 predict; predictions with some hits."""
    rows = len(hits)
    labels = torch.tensor([0, 5, 6]).expand(rows, 1, 3)
    supervised = torch.tensor([False, True, True]).expand(rows, 1, 3)
    anchors = torch.zeros(rows, 1, dtype=torch.int64)
    slots = torch.arange(3).expand(rows, 1, 3)
    blocks = BlockBatch(
        anchors=anchors, valid=anchors == 0, tokens=labels, slots=slots, labels=labels, label_positions=slots,
        supervised=supervised,
    )  # fmt: skip
    predicted = torch.stack([torch.tensor([[0, 5 if hit > 0 else 9, 6 if hit > 1 else 9]]) for hit in hits])
    return blocks, predicted


def test_families_of_any_name():
    names = ["gsm8k.main", "train", "type", "a/b"]
    metrics = ValidationMetrics(2, 1, 4, names)
    blocks, predicted = blocks_of([0, 1, 2, 2])
    metrics.update(blocks, predicted, predicted, torch.zeros_like(predicted), [*names[:3], "unknown"])
    values = metrics.compute()
    assert [float(values[f"val/mat_family/{name}"]) for name in names[:3]] == [1.0, 2.0, 3.0]
    assert not metrics.state_dict()
    metrics.reset()
    assert int(metrics.family_mat[2].mat_rounds) == 0


def test_mat_of_fewer_drafts():
    metrics = ValidationMetrics(2, 1, 4)
    assert metrics.mat_of(2) == 0  # nothing seen
    blocks, predicted = blocks_of([0, 1, 2, 2])
    metrics.update(blocks, predicted, predicted, torch.zeros_like(predicted), [])
    assert metrics.mat_of(2) == pytest.approx(float(metrics.compute()["val/mat"])) == pytest.approx(2.25)
    assert metrics.mat_of(1) == pytest.approx(1.75)


def test_confidences_of_more_drafts_than_have_a_temperature():
    head, count = ConfidenceHead(3, 2), MAX_POSITIONS + 6
    metrics = ValidationMetrics(count, 1, 4)
    metrics.confidence.update(torch.ones(count), torch.ones(count), torch.arange(count))
    metrics.loss.update(1.0, 1.0)
    head.calibrate(metrics.temperatures())
    values = metrics.compute(head)
    assert values[f"val/confidence_ece_after_at/{count}"] < values[f"val/confidence_ece_before_at/{count}"]


def test_parts_are_pooled_by_what_they_are_means_over():
    metrics = ValidationMetrics(2, 1, 4)
    for value, denominator in ((4.0, 1.0), (1.0, 3.0), (100.0, 0.0)):  # the last is a batch of filler rows
        metrics.update_part("corrector_loss", torch.tensor(value), torch.tensor(denominator))
    metrics.loss.update(1.0, 1.0)
    assert float(metrics.compute()["val/corrector_loss"]) == pytest.approx(7 / 4)
    metrics.reset()
    assert "val/corrector_loss" not in metrics.compute()


def test_sums_stay_float32_in_a_bfloat16_run():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # as Lightning does for bf16-true, around construction and steps
    try:
        metrics = ValidationMetrics(2, 1, 4).to(torch.bfloat16)
        counts = ConfidenceCounts(1)
        for _ in range(1000):
            metrics.loss.update(torch.tensor(1.0, dtype=torch.float32), torch.tensor(1.0, dtype=torch.float32))
            metrics.update_part("base_loss", torch.tensor(0.1, dtype=torch.float32), torch.tensor(1.0))
    finally:
        torch.set_default_dtype(before)
    assert float(metrics.loss.weight) == 1000
    assert float(metrics.compute()["val/base_loss"]) == pytest.approx(0.1, rel=1e-4)
    assert metrics.confidence.confidence_sums.dtype == counts.confidence_sums.dtype == torch.float32
