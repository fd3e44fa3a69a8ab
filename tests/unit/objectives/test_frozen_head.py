from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from typing_extensions import override

from specdraft.objectives import (
    CrossEntropy,
    KLDivergence,
    LKHybrid,
    NegativeLogAcceptance,
    Prediction,
    TargetChunk,
    TotalVariation,
    WeightedSum,
    default_chunk_size,
    frozen_head_loss,
)

N, H, V = 23, 8, 40


class Squared(Prediction):
    """A loss without closed form: takes the path through autograd."""

    @override
    def forward(self, logits, labels, target):
        return ((logits.float().softmax(-1) - F.one_hot(labels, logits.shape[1])) ** 2).sum(-1)


LOSSES = [CrossEntropy(), CrossEntropy(0.1), KLDivergence(2.0), TotalVariation(), Squared()]
LOSSES.append(WeightedSum(LOSSES[:1] + LOSSES[3:], [0.1, 0.9, 0.5]))


def example(toy_head, kind):
    torch.manual_seed(1)
    weight = torch.randn(V, H)
    ids = torch.randperm(V)[:17] if kind == "reduced" else None
    cap = 3.0 if kind == "softcap" else None
    head, full = toy_head(weight, ids, cap), toy_head(weight, None, cap)
    hidden, target_hidden = torch.randn(N, H, requires_grad=True), torch.randn(N, H)
    return hidden, head, torch.randint(head.weight.shape[0], (N,)), target_hidden, full


def naive(hidden, head, rows, loss, target_hidden, full):
    logits, target = head(hidden), full(target_hidden)
    kept = target if head.token_ids is None else target[:, head.token_ids]
    return logits, loss.forward(logits, rows, TargetChunk(kept, target.logsumexp(-1))), target.softmax(-1)


@pytest.mark.parametrize("kind", ["whole", "reduced", "softcap"])
@pytest.mark.parametrize("chunk", [1, 7, 23, 100])
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradient_equal_naive(toy_head, loss, chunk, kind):
    hidden, head, rows, target_hidden, full = example(toy_head, kind)
    weights = torch.rand(N)  # applied afterwards, detached
    out = frozen_head_loss(hidden, head, rows, loss, target_hidden, full, chunk)
    (got,) = torch.autograd.grad((out.loss * weights).sum(), hidden)
    logits, expected, p = naive(hidden, head, rows, loss, target_hidden, full)
    (reference,) = torch.autograd.grad((expected * weights).sum(), hidden)
    assert reference.abs().max() > 1e-2
    torch.testing.assert_close(out.loss, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got, reference, atol=1e-5, rtol=1e-5)
    q = logits.softmax(-1)
    torch.testing.assert_close(out.label_prob, q.gather(1, rows[:, None])[:, 0].detach())
    assert torch.equal(out.predicted, logits.argmax(-1))
    wide = torch.zeros_like(p)
    wide[:, torch.arange(V) if head.token_ids is None else head.token_ids] = q.detach()
    torch.testing.assert_close(out.overlap, torch.minimum(p, wide).sum(-1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("loss", LOSSES)
def test_validation_computes_no_gradient(toy_head, loss, context):
    hidden, head, rows, target_hidden, full = example(toy_head, "whole")
    with_grad = frozen_head_loss(hidden, head, rows, loss, target_hidden, full, 7)
    calls = []
    fused = loss.fused
    loss.fused = lambda *args: calls.append(args[-1]) or fused(*args)
    try:
        with context():
            out = frozen_head_loss(hidden * 1, head, rows, loss, target_hidden, full, 7)
    finally:
        del loss.fused
    assert calls == [False] * 4
    assert not out.loss.requires_grad
    torch.testing.assert_close(out.loss, with_grad.loss.detach(), atol=1e-6, rtol=1e-5)


def test_largest_logit_tensor_is_one_chunk(toy_head):
    hidden, head, rows, _, _ = example(toy_head, "whole")
    seen = []
    call = lambda inputs: seen.append(inputs.shape[0]) or toy_head.__call__(head, inputs)  # noqa: E731
    spy = type("Spy", (), {"token_ids": None, "__call__": lambda self, x: call(x)})()
    out = frozen_head_loss(hidden, spy, rows, CrossEntropy(), None, None, 5)
    assert seen == [5, 5, 5, 5, 3]
    assert [t.shape for t in out.loss.grad_fn.saved_tensors] == [(N, H)]


def test_autocast_equals_naive_in_autocast(toy_head):
    hidden, head, rows, _, _ = example(toy_head, "whole")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = frozen_head_loss(hidden, head, rows, CrossEntropy(), None, None, 7)
        logits = head(hidden)
        expected = F.cross_entropy(logits.float(), rows, reduction="none")
    assert logits.dtype == torch.bfloat16
    assert out.loss.dtype == torch.float32
    torch.testing.assert_close(out.loss, expected, atol=1e-5, rtol=1e-5)
    (got,), (reference,) = (torch.autograd.grad(x.sum(), hidden) for x in (out.loss, expected))
    torch.testing.assert_close(got, reference, atol=2e-2, rtol=2e-2)


def test_half_precision_states_and_extreme_logits(toy_head):
    hidden, head, rows, _, _ = example(toy_head, "whole")
    states = (hidden.detach() * 200).bfloat16().requires_grad_()
    head.weight = head.weight.bfloat16()
    out = frozen_head_loss(states, head, rows, CrossEntropy(), None, None, 7)
    out.loss.sum().backward()
    expected = F.cross_entropy(head(states).float(), rows, reduction="none")
    assert states.grad.dtype == torch.bfloat16
    assert torch.isfinite(states.grad).all()
    assert out.loss.max() > 300  # the label's probability underflows, its loss does not
    torch.testing.assert_close(out.loss, expected, atol=1e-4, rtol=1e-5)


def test_no_position_keeps_the_graph(toy_head):
    hidden, head, rows, _, _ = example(toy_head, "whole")
    out = frozen_head_loss(hidden[:0], head, rows[:0], CrossEntropy(), None, None, 7)
    (grad,) = torch.autograd.grad(out.loss.sum(), hidden)
    assert out.loss.shape == (0,)
    assert (grad == 0).all()


def test_default_chunk_size(toy_head):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [default_chunk_size(rows, cpu) for rows in (49_152, 151_936, 32_000)] == [128, 64, 256]
    assert default_chunk_size(151_936, gpu) == 1024
    hidden, head, rows, _, _ = example(toy_head, "whole")
    out = frozen_head_loss(hidden, head, rows, CrossEntropy(), None, None)
    torch.testing.assert_close(out.loss, F.cross_entropy(head(hidden), rows, reduction="none"))


def test_missing_parts_are_named(toy_head):
    hidden, head, rows, target_hidden, _ = example(toy_head, "reduced")
    with pytest.raises(ValueError, match="target_head"):
        frozen_head_loss(hidden, head, rows, TotalVariation(), target_hidden, None, 7)
    with pytest.raises(ValueError, match="last hidden states"):
        frozen_head_loss(hidden, head, rows, TotalVariation(), None, None, 7)
    with pytest.raises(ValueError, match="chunk_size"):
        frozen_head_loss(hidden, head, rows, CrossEntropy(), None, None, 0)


@pytest.mark.parametrize("kind", ["whole", "reduced", "softcap"])
def test_several_losses_from_one_pass_equal_each_alone(toy_head, kind):
    hidden, head, rows, target_hidden, full = example(toy_head, kind)
    losses = [CrossEntropy(), TotalVariation(), NegativeLogAcceptance(), LKHybrid(), Squared()]
    out = frozen_head_loss(hidden, head, rows, losses[0], target_hidden, full, 7, losses[1:])
    for loss, got in zip(losses, (out.loss, *out.further), strict=True):
        alone = frozen_head_loss(hidden, head, rows, loss, target_hidden, full, 7).loss
        torch.testing.assert_close(got, alone)
        gradients = [torch.autograd.grad(x.sum(), hidden, retain_graph=True)[0] for x in (got, alone)]
        torch.testing.assert_close(*gradients)
