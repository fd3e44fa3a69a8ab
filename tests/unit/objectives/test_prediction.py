from __future__ import annotations

import math

import pytest
import torch

from specdraft.objectives import (
    CrossEntropy,
    DraftChunk,
    KLDivergence,
    LKHybrid,
    NegativeLogAcceptance,
    Prediction,
    TargetChunk,
    TotalVariation,
    WeightedSum,
)

LOSSES = [
    CrossEntropy(),
    CrossEntropy(0.2),
    KLDivergence(),
    KLDivergence(2.5),
    TotalVariation(),
    NegativeLogAcceptance(),
    LKHybrid(),
    LKHybrid(0.5),
    WeightedSum([CrossEntropy(0.1), TotalVariation(), CrossEntropy()], [0.1, 1.8, -0.3]),
]


def example(reduced):
    """Logits ``[3, 5]``, labels and a target over 9 tokens of which the first 5 may be the draft vocabulary."""
    torch.manual_seed(4)
    logits, full = torch.randn(3, 5) * 2, torch.randn(3, 9 if reduced else 5) * 2
    return logits, torch.tensor([0, 4, 2]), TargetChunk(full[:, :5].contiguous(), full.logsumexp(-1)), full.softmax(-1)


def slow(loss, q, label, p, full):
    """One position by hand; ``p`` and ``q`` are lists over the draft vocabulary, ``full`` over all tokens."""
    if isinstance(loss, WeightedSum):
        return sum(w * slow(t, q, label, p, full) for t, w in zip(loss.terms, loss.weights, strict=True))
    if isinstance(loss, CrossEntropy):
        share = [loss.label_smoothing / len(q) + (1 - loss.label_smoothing) * (v == label) for v in range(len(q))]
        return -sum(s * math.log(x) for s, x in zip(share, q, strict=True))
    if isinstance(loss, KLDivergence):
        p, q = ([x ** (1 / loss.temperature) for x in law] for law in (p, q))
        p, q = ([x / sum(law) for x in law] for law in (p, q))
        return loss.temperature**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    if isinstance(loss, NegativeLogAcceptance):
        return -math.log(sum(map(min, p, q)))
    if isinstance(loss, LKHybrid):
        acceptance = sum(map(min, p, q))
        share = math.exp(-loss.eta * acceptance)
        return share * slow(KLDivergence(), q, label, p, full) + (1 - share) * (1 - acceptance)
    q = q + [0.0] * (len(full) - len(q))
    return 0.5 * sum(abs(a - b) for a, b in zip(full, q, strict=True))


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_equals_definition(loss, reduced):
    logits, labels, target, full = example(reduced)
    got = loss.forward(logits, labels, target)
    for n in range(3):
        q, p = logits[n].double().softmax(-1).tolist(), full[n].double().tolist()
        assert got[n].item() == pytest.approx(slow(loss, q, int(labels[n]), p[:5], p), abs=2e-6)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_closed_form_equals_autograd(loss, reduced):
    logits, labels, target, _ = example(reduced)

    def chunk():
        return DraftChunk(logits.clone(), logits.softmax(-1), logits.logsumexp(-1))

    expected, gradient = Prediction.fused(loss, chunk(), labels, target, True)
    value, slope = loss.fused(chunk(), labels, target, True)
    only, none = loss.fused(chunk(), labels, target, False)
    assert none is None
    assert gradient.abs().max() > 1e-3
    torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(only, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(slope, gradient, atol=1e-6, rtol=1e-5)


def test_total_variation_is_half_the_l1_norm():
    target = TargetChunk(torch.tensor([[0.0, -100.0]]), torch.zeros(1))
    assert TotalVariation().forward(torch.tensor([[-100.0, 0.0]]), torch.tensor([0]), target).item() == 1


def test_what_needs_the_target():
    assert [loss.needs_target for loss in LOSSES] == [False, False, *[True] * 7]
    assert not WeightedSum([CrossEntropy()], [1.0]).needs_target
    for loss in LOSSES[2:]:
        with pytest.raises(ValueError, match="needs the target's last hidden states"):
            loss.forward(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64), None)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CrossEntropy(1.0), "label_smoothing"),
        (lambda: CrossEntropy(-0.1), "label_smoothing"),
        (lambda: KLDivergence(0), "temperature"),
        (lambda: LKHybrid(-1), "eta must not be negative"),
        (lambda: WeightedSum([], []), "at least one"),
        (lambda: WeightedSum([CrossEntropy()], [1.0, 2.0]), "1 terms and 2 weights"),
        (lambda: WeightedSum([CrossEntropy()], [float("nan")]), "finite"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
