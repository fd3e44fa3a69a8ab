from __future__ import annotations

import pytest
import torch

from specdraft.decoding import SamplingParams, next_tokens, sample, to_probs


def reference(logits, temperature, top_p, top_k):
    scores = [x / temperature for x in logits]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    kept = order[:top_k] if top_k else order
    top = max(scores)
    mass = {i: torch.tensor(scores[i] - top, dtype=torch.float64).exp().item() for i in kept}
    total, running, nucleus = sum(mass.values()), 0.0, []
    for i in kept:
        if running >= top_p * total and top_p < 1:
            break
        nucleus.append(i)
        running += mass[i]
    return [mass[i] / running if i in nucleus else 0.0 for i in range(len(scores))]


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1, 1, 0), (0.5, 0.8, 0), (2, 1, 3), (1, 0.6, 4), (1, 0.01, 0)]
)
def test_to_probs(temperature, top_p, top_k):
    logits = 2 * torch.randn(3, 2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs = to_probs(logits, SamplingParams(temperature, top_p, top_k))
    for row, got in zip(logits.view(-1, 9).tolist(), probs.view(-1, 9).tolist(), strict=True):
        assert got == pytest.approx(reference(row, temperature, top_p, top_k), abs=1e-12)
    half = to_probs(logits.bfloat16(), SamplingParams(temperature, top_p, top_k))
    assert half.dtype == torch.float32
    assert torch.allclose(half.sum(-1), torch.ones(3, 2))


def test_greedy_is_one_hot():
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, 2.0]])
    assert to_probs(logits, SamplingParams()).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert next_tokens(logits, SamplingParams()).tolist() == [1, 2]


def test_sample_shape_law_and_seed():
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3]).expand(200, 50, 4)
    drawn = sample(probs, torch.Generator().manual_seed(0))
    assert drawn.shape == (200, 50)
    counts = torch.bincount(drawn.flatten(), minlength=4) / 10000
    assert counts.tolist() == pytest.approx([0.1, 0.0, 0.6, 0.3], abs=0.02)
    assert drawn.equal(sample(probs, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    "kwargs", [{"temperature": -0.1}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}]
)
def test_refuses(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        SamplingParams(**kwargs)
