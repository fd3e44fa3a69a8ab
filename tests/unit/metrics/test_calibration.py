"""Calibration error against a slow reference, and temperatures that are known."""

from __future__ import annotations

import pytest
import torch

from specdraft.metrics import ConfidenceCounts, expected_calibration_error, fit_temperatures


def rated(count, true_temperatures, seed=0):
    """Logits that are ``true_temperatures`` too far out: acceptance is drawn from ``sigmoid(logit / T)``."""
    g = torch.Generator().manual_seed(seed)
    positions = torch.randint(len(true_temperatures), (count,), generator=g)
    logits = 2.5 * torch.randn(count, generator=g) + 0.5
    chance = torch.sigmoid(logits / torch.tensor(true_temperatures)[positions])
    return logits, torch.bernoulli(chance, generator=g), positions


def slow_error(confidence, acceptance, bins=15):
    total = 0.0
    for i in range(bins):
        inside = (confidence >= i / bins) & ((confidence < (i + 1) / bins) | (i == bins - 1))
        if inside.any():
            total += float(inside.float().mean() * (confidence[inside].mean() - acceptance[inside].mean()).abs())
    return total


def metric_of(logits, acceptance, positions, num_drafts):
    metric = ConfidenceCounts(num_drafts)
    metric.update(logits, acceptance, positions)
    return metric


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_error_equals_the_definition(temperature):
    logits, acceptance, positions = rated(4000, [2.0, 0.6, 1.0])
    counts = metric_of(logits, acceptance, positions, 3).compute()
    errors = expected_calibration_error(counts, torch.full((3,), temperature))
    for k in range(3):
        own = positions == k
        expected = slow_error(torch.sigmoid(logits[own] / temperature), acceptance[own])
        # slots are counted in steps of 0.1 logits, so that a few lie on the other side of an edge
        assert float(errors[k]) == pytest.approx(expected, abs=0.01)


def test_temperatures_are_found_and_mend_the_error():
    true = [2.5, 1.0, 0.5]
    counts = metric_of(*rated(60_000, true), 3).compute()
    found = fit_temperatures(counts)
    torch.testing.assert_close(found, torch.tensor(true), rtol=0.06, atol=0)
    before, after = (expected_calibration_error(counts, t) for t in (torch.ones(3), found))
    assert before[0] > 0.06
    assert before[2] > 0.06
    assert (after < 0.015).all()


def test_soft_labels_give_the_same_temperature():
    logits, _, positions = rated(20_000, [3.0])
    counts = metric_of(logits, torch.sigmoid(logits / 3.0), positions, 1).compute()
    assert float(fit_temperatures(counts)) == pytest.approx(3.0, rel=0.01)


def test_fitted_temperature_has_the_least_loss():
    logits, acceptance, positions = rated(3000, [1.7])
    best = float(fit_temperatures(metric_of(logits, acceptance, positions, 1).compute()))

    def loss(temperature):
        return float(torch.nn.functional.binary_cross_entropy_with_logits(logits / temperature, acceptance))

    assert loss(best) <= min(loss(best * 1.05), loss(best / 1.05))


def test_positions_without_slots_and_hopeless_ones():
    metric = metric_of(torch.full((50,), 3.0), torch.zeros(50), torch.ones(50, dtype=torch.int64), 2)
    found = fit_temperatures(metric.compute())
    assert found.tolist() == pytest.approx([1.0, 20.0], rel=1e-3)
    assert float(expected_calibration_error(metric.compute(), found)[0]) == 0


def test_batches_pool_and_reset():
    logits, acceptance, positions = rated(900, [1.0, 2.0])
    whole = metric_of(logits, acceptance, positions, 2)
    parts = ConfidenceCounts(2)
    for own in torch.arange(900).split(70):
        parts.update(logits[own], acceptance[own], positions[own])
    torch.testing.assert_close(parts.compute(), whole.compute())
    assert int(whole.compute()[0].sum()) == 900
    parts.reset()
    assert not parts.compute().any()
    assert parts.state_dict() == {}


def test_extreme_logits_are_counted():
    metric = metric_of(torch.tensor([-1e4, 1e4, 12.0]), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 0, 0]), 1)
    counts = metric.compute()
    assert int(counts[0].sum()) == 3
    assert float(expected_calibration_error(counts, torch.ones(1))) < 1e-4


def test_refuses():
    with pytest.raises(ValueError, match="num_drafts must be at least 1, got 0"):
        ConfidenceCounts(0)
    with pytest.raises(ValueError, match=r"must all be \[n\]"):
        ConfidenceCounts(2).update(torch.zeros(3), torch.zeros(2), torch.zeros(3, dtype=torch.int64))
