"""The implementations of block attention against a slow loop and against each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specdraft.drafters import AutomaticAttention, BlockAttention, DenseAttention, FlexAttention, SplitAttention

HEADS, KV_HEADS, WIDTH = 6, 2, 8
OPTIONS = [(False, None), (True, None), (False, 5), (True, 3), (False, 1)]


def make_inputs(blocks, dtype=torch.float32) -> list[Tensor]:
    rows, length = blocks.document_ids.shape
    count = blocks.slots[0].numel()
    shapes = [(count, HEADS), (length, KV_HEADS), (length, KV_HEADS), (count, KV_HEADS), (count, KV_HEADS)]
    return [torch.randn(rows, n, heads, WIDTH, dtype=dtype, requires_grad=True) for n, heads in shapes]


def run(attention: BlockAttention, inputs: list[Tensor], layout) -> Tensor:
    q, kc, vc, kb, vb = inputs
    return attention(q, (kc, vc), (kb, vb), attention.prepare(layout))


def slow(inputs: list[Tensor], blocks, causal: bool, window: int | None) -> Tensor:
    """One softmax per slot and head over a list of keys, straight from the definition."""
    q, kc, vc, kb, vb = inputs
    out = torch.zeros_like(q)
    _, anchors, size = blocks.slots.shape
    for n in range(q.shape[0]):
        for a in range(anchors):
            anchor = int(blocks.anchors[n, a])
            document, position = blocks.document_ids[n, anchor], int(blocks.position_ids[n, anchor])
            for i in range(size):
                context = [
                    t
                    for t in range(anchor)
                    if blocks.document_ids[n, t] == document
                    and (window is None or position + i - int(blocks.position_ids[n, t]) < window)
                ]
                own = [
                    a * size + j
                    for j in range(size)
                    if j == i
                    or (blocks.slots[n, a, j] and not (causal and j > i) and (window is None or i - j < window))
                ]
                for h in range(HEADS):
                    g = h // (HEADS // KV_HEADS)
                    keys = torch.cat([kc[n, context, g], kb[n, own, g]])
                    values = torch.cat([vc[n, context, g], vb[n, own, g]])
                    row = a * size + i
                    out[n, row, h] = torch.softmax(keys @ q[n, row, h] / WIDTH**0.5, 0) @ values
    return out


@pytest.mark.parametrize(("causal", "window"), OPTIONS)
@pytest.mark.parametrize("documents", [((9, 7, 5), (6, 11)), ((14,), (9,))], ids=["packed", "padded"])
@pytest.mark.parametrize(
    "attention",
    [DenseAttention(), SplitAttention(), SplitAttention(chunk=200), FlexAttention(compiled=False)],
    ids=["dense", "split", "split-chunks", "flex"],
)
def test_equals_the_definition(attention, documents, causal, window, make_blocks) -> None:
    blocks = make_blocks(documents)
    inputs = make_inputs(blocks)
    if isinstance(attention, FlexAttention):
        inputs = [x.detach() for x in inputs]  # flex_attention has no backward pass on the CPU
    got = run(attention, inputs, blocks.layout(causal, window))
    want = slow(inputs, blocks, causal, window)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    if isinstance(attention, FlexAttention):
        return
    upstream = torch.randn_like(want)
    for mine, theirs in zip(
        torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(want, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


def test_split_gradients_are_exact_in_float64(make_blocks) -> None:
    blocks = make_blocks(((4, 3), (5,)), count=3, size=2)
    attention = SplitAttention(chunk=60)
    assert torch.autograd.gradcheck(
        lambda *x: run(attention, list(x), blocks.layout()), make_inputs(blocks, torch.float64), eps=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("attention", [DenseAttention(), SplitAttention()], ids=["dense", "split"])
@pytest.mark.parametrize("window", [None, 1])
def test_rows_without_context_or_slots_stay_finite(attention, window, make_blocks) -> None:
    blocks = make_blocks()
    blocks.slots[:] = False
    blocks.anchors[:] = 0
    inputs = make_inputs(blocks)
    out = run(attention, inputs, blocks.layout(window=window))
    grads = torch.autograd.grad(out.square().sum(), inputs)
    assert all(torch.isfinite(x).all() for x in (out, *grads))


def test_split_in_bfloat16_stays_close_to_float32(make_blocks) -> None:
    blocks = make_blocks()
    inputs = make_inputs(blocks)
    low = [x.detach().bfloat16().requires_grad_() for x in inputs]
    wide = [x.detach().float().requires_grad_() for x in low]
    got, want = run(SplitAttention(), low, blocks.layout()), run(SplitAttention(), wide, blocks.layout())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, atol=3e-2, rtol=0)
    for mine, theirs in zip(
        torch.autograd.grad(got.float().square().sum(), low),
        torch.autograd.grad(want.square().sum(), wide),
        strict=True,
    ):
        torch.testing.assert_close(mine.float(), theirs, atol=1e-1, rtol=5e-2)


def test_split_runs_in_float32_under_autocast(make_blocks) -> None:
    blocks = make_blocks()
    inputs = make_inputs(blocks)
    with torch.autocast("cpu", torch.bfloat16):
        got = run(SplitAttention(), inputs, blocks.layout())
    assert torch.equal(got, run(SplitAttention(), inputs, blocks.layout()))


def test_split_refuses_an_empty_chunk() -> None:
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        SplitAttention(chunk=0)


def test_automatic_choice_by_device() -> None:
    assert isinstance(AutomaticAttention(64).choose("cpu"), SplitAttention)
    assert isinstance(AutomaticAttention(8).choose("cuda"), SplitAttention)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("causal", "window"), OPTIONS)
def test_compiled_flex_equals_dense_with_gradients(causal, window, make_blocks) -> None:
    blocks = make_blocks(((90, 70, 41), (60, 110)), count=20, size=16)
    for name, value in vars(blocks).items():
        setattr(blocks, name, value.cuda())
    rows, length = blocks.document_ids.shape
    shapes = [(320, 6), (length, 2), (length, 2), (320, 2), (320, 2)]
    inputs = [torch.randn(rows, n, heads, 64, device="cuda", requires_grad=True) for n, heads in shapes]
    layout = blocks.layout(causal, window)
    outs = [run(attention, inputs, layout) for attention in (FlexAttention(), DenseAttention())]
    torch.testing.assert_close(*outs, atol=1e-5, rtol=1e-5)
    upstream = torch.randn_like(outs[0])
    for mine, theirs in zip(*(torch.autograd.grad(out, inputs, upstream) for out in outs), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
