"""Weights that follow the predictions, against loops written from the formulas."""

from __future__ import annotations

import math

import pytest
import torch

from specdraft.objectives import (
    AcceptanceWeighted,
    ExponentialDecay,
    FirstError,
    IntraBlockUnmasking,
    MixedHorizon,
    Objective,
    Scores,
    Uniform,
    WeightProduct,
    all_anchors,
)

INCLUSIONS = [
    MixedHorizon([3, 8]),
    IntraBlockUnmasking(0.6, random_share=0.5),
    IntraBlockUnmasking(0.6, inner=MixedHorizon([3, 8])),
]


def example(batch, inclusion, first_slot, seed=0):
    anchors, valid = all_anchors(batch, 100)
    generator = torch.Generator().manual_seed(seed)
    blocks = inclusion.build(
        batch, anchors, valid, block_size=8, first_slot=first_slot, mask_token_id=49, generator=generator
    )
    shape, mask = blocks.labels.shape, blocks.supervised
    probability, overlap = (torch.rand(shape, generator=generator) * mask for _ in range(2))
    correct = (torch.rand(shape, generator=generator) < 0.6) & mask
    return blocks, Scores(probability, correct, overlap)


def places(blocks):
    """Block indices with their supervised slots, in order."""
    for n, a in blocks.supervised.any(-1).nonzero().tolist():
        yield n, a, blocks.supervised[n, a].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("first_slot", [0, 1])
@pytest.mark.parametrize("inclusion", INCLUSIONS, ids=["mixed", "unmasked", "both"])
@pytest.mark.parametrize("score", ["probability", "argmax", "overlap"])
@pytest.mark.parametrize("form", ["prefix", "suffix_sum"])
@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_acceptance_weights_equal_loop(batch, first_slot, inclusion, score, form, inclusive, smoothing):
    blocks, scores = example(batch, inclusion, first_slot)
    weighting = AcceptanceWeighted(score, form, inclusive, smoothing, allow_zero_smoothing=True)
    assert weighting.needs_target == (score == "overlap")
    got = weighting.weights(blocks, scores)
    raw = {"probability": scores.label_prob, "argmax": scores.correct.float(), "overlap": scores.overlap}[score]
    for n, a, slots in places(blocks):
        s = [(1 - smoothing) * raw[n, a, i].item() + smoothing for i in slots]
        reach = [math.prod(s[: j + 1] if inclusive else s[:j]) for j in range(len(s))]
        for j, i in enumerate(slots):
            want = sum(reach[j:]) if form == "suffix_sum" else reach[j]
            assert got[n, a, i].item() == pytest.approx(want, rel=1e-5, abs=1e-7)
            assert smoothing == 0 or got[n, a, i] > 0


def test_suffix_sum_is_the_gradient_of_the_expected_accepted_length():
    """D-PACE: d/dlog q_j of sum_k prod_{i <= k} q_i, unsmoothed."""
    q = torch.rand(1, 1, 6, dtype=torch.float64, requires_grad=True)
    surrogate = q.cumprod(-1).sum()
    (gradient,) = torch.autograd.grad(surrogate, q)
    blocks = type("B", (), {"supervised": torch.ones(1, 1, 6, dtype=torch.bool)})()
    weighting = AcceptanceWeighted("probability", "suffix_sum", True, 0.0, allow_zero_smoothing=True)
    weights = weighting.weights(blocks, Scores(q.detach().float(), torch.ones(1, 1, 6, dtype=torch.bool)))
    torch.testing.assert_close(weights.double(), gradient * q.detach(), atol=1e-6, rtol=1e-5)


def test_smoothing_keeps_the_last_of_many_slots_above_zero():
    blocks = type("B", (), {"supervised": torch.ones(1, 1, 100, dtype=torch.bool)})()
    never = Scores(torch.zeros(1, 1, 100), torch.zeros(1, 1, 100, dtype=torch.bool))
    for form in ("prefix", "suffix_sum"):
        for inclusive in (False, True):
            assert (AcceptanceWeighted("argmax", form, inclusive, 0.5).weights(blocks, never) > 0).all()


@pytest.mark.parametrize("first_slot", [0, 1])
@pytest.mark.parametrize("inclusion", INCLUSIONS, ids=["mixed", "unmasked", "both"])
@pytest.mark.parametrize("base", [None, ExponentialDecay(10.0)])
@pytest.mark.parametrize(
    ("focal", "cut", "decay"), [(0.0, True, None), (0.3, False, None), (0.5, True, None), (0.0, False, 7.0)]
)
def test_first_error_equals_loop(batch, first_slot, inclusion, base, focal, cut, decay):
    blocks, scores = example(batch, inclusion, first_slot)
    got = FirstError(focal, cut, decay, base).weights(blocks, scores)
    plain = (base or Uniform()).weights(blocks, scores)
    missed = 0
    for n, a, slots in places(blocks):
        first = next((i for i in slots if not scores.correct[n, a, i]), None)
        missed += first is not None
        for i in slots:
            want = plain[n, a, i].item() + focal * (i == first)
            if first is not None and i > first:
                want = 0.0 if cut else want * (math.exp(-(i - first) / decay) if decay else 1)
            assert got[n, a, i].item() == pytest.approx(want, rel=1e-5)
    assert missed > 3


def test_product_of_weightings(batch):
    blocks, scores = example(batch, INCLUSIONS[0], 1)
    parts = [ExponentialDecay(3.0), AcceptanceWeighted("overlap")]
    product = WeightProduct(parts)
    assert product.needs_target
    want = parts[0].weights(blocks, scores) * parts[1].weights(blocks, scores)
    torch.testing.assert_close(product.weights(blocks, scores), want)
    assert FirstError(base=product).needs_target
    assert not FirstError().needs_target


@pytest.mark.parametrize(
    "weighting",
    [AcceptanceWeighted(), AcceptanceWeighted(form="suffix_sum", inclusive=True), FirstError(0.3, False)],
    ids=["prefix", "suffix_sum", "first_error"],
)
def test_normalised_whatever_the_number_of_anchors_and_batches(make_batch, toy_head, weighting):
    head = toy_head(torch.randn(50, 8, generator=torch.Generator().manual_seed(7)))
    batch = make_batch([["a" * 80], ["a" * 80]])
    batch.input_ids.fill_(3)  # all blocks alike
    state = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    losses = []
    for count in (4, 60):
        objective = Objective(weighting=weighting, num_anchors=count)
        blocks = objective.blocks(
            batch, block_size=6, first_slot=1, mask_token_id=49, generator=torch.Generator().manual_seed(0)
        )
        blocks.supervised &= (blocks.anchors < 70)[..., None]
        hidden = state.expand(*blocks.tokens.shape, 8)
        out = objective(hidden, blocks, head)
        losses.append(out.loss)
        halves = [
            objective(hidden[n : n + 1], type(blocks)(**{k: v[n : n + 1] for k, v in vars(blocks).items()}), head)
            for n in range(2)
        ]
        total = sum(half.denominator for half in halves)
        torch.testing.assert_close(sum(half.normalised(total) for half in halves), out.loss)
    torch.testing.assert_close(losses[0], losses[1])


def test_weight_profile_is_the_mean_over_supervised_slots(batch, toy_head):
    head = toy_head(torch.randn(50, 8, generator=torch.Generator().manual_seed(7)))
    objective = Objective(MixedHorizon([3, 6]), AcceptanceWeighted(), num_anchors=20)
    blocks = objective.blocks(
        batch, block_size=6, first_slot=1, mask_token_id=49, generator=torch.Generator().manual_seed(0)
    )
    out = objective(torch.randn(*blocks.tokens.shape, 8), blocks, head)
    for i in range(6):
        values = out.weights[..., i][blocks.supervised[..., i]]
        assert out.weight_profile[i].item() == pytest.approx(values.mean().item() if len(values) else 0.0, rel=1e-5)
    logged = out.training_values(1)
    assert logged["train/weight_at/1"] == out.weight_profile[1] == 1
    assert "train/weight_at/6" not in logged


@pytest.mark.parametrize(
    ("build_it", "message"),
    [
        (lambda: AcceptanceWeighted("entropy"), "score 'entropy' is unknown"),
        (lambda: AcceptanceWeighted(form="mean"), "form 'mean' is unknown"),
        (lambda: AcceptanceWeighted(smoothing=1.2), "smoothing must lie"),
        (lambda: AcceptanceWeighted(smoothing=0), "allow_zero_smoothing"),
        (lambda: FirstError(focal=-1), "focal must not be negative"),
        (lambda: FirstError(decay=7.0), "set cut: false"),
        (lambda: FirstError(cut=False, decay=0.0), "decay must be positive"),
        (lambda: FirstError(cut=False), "changes nothing"),
        (lambda: WeightProduct([]), "factors is empty"),
    ],
)
def test_what_cannot_be_is_refused(build_it, message):
    with pytest.raises(ValueError, match=message):
        build_it()


def test_overlap_without_a_target_is_refused(batch):
    blocks, scores = example(batch, INCLUSIONS[0], 1)
    scores.overlap = None
    with pytest.raises(ValueError, match="last hidden states"):
        AcceptanceWeighted("overlap").weights(blocks, scores)
