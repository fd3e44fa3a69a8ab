"""Rotary embedding against transformers and against its defining property."""

from __future__ import annotations

import pytest
import torch

from specdraft.drafters.rope import RotaryEmbedding, inverse_frequencies, rotate

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 100000.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        LLAMA3,
    ],
    ids=lambda p: p["rope_type"],
)
def test_rotates_as_transformers_does(parameters) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=128, num_attention_heads=2, rope_parameters=dict(parameters), max_position_embeddings=131072
    )
    positions = torch.tensor([[0, 1, 7, 4000, 90000], [3, 5, 8, 13, 21]])
    queries = torch.randn(2, 5, 2, 64)
    cos, sin = llama.LlamaRotaryEmbedding(config)(queries, positions)
    want, _ = llama.apply_rotary_pos_emb(queries.transpose(1, 2), queries.transpose(1, 2), cos, sin)
    got = rotate(queries, RotaryEmbedding(parameters, 64)(positions))
    # angles of 90,000 radians: a last-bit difference of a frequency is 1e-2 of a radian there
    torch.testing.assert_close(got[:, :3], want.transpose(1, 2)[:, :3], atol=1e-5, rtol=0)
    torch.testing.assert_close(got, want.transpose(1, 2), atol=5e-2, rtol=0)


def test_scores_depend_on_the_distance_only() -> None:
    rope = RotaryEmbedding({"rope_type": "default", "rope_theta": 10000.0}, 16)
    q, k = torch.randn(2, 1, 1, 1, 16)
    score = [
        (rotate(q, rope(torch.tensor([[a]]))) * rotate(k, rope(torch.tensor([[b]])))).sum()
        for a, b in [(9, 4), (105, 100)]
    ]
    torch.testing.assert_close(score[0], score[1], atol=1e-4, rtol=0)


def test_looking_up_gives_what_computing_gives() -> None:
    rope = RotaryEmbedding({"rope_type": "default", "rope_theta": 10000.0}, 64)
    for longest in (8, 300, 20):  # grows, and is kept
        where = torch.randint(0, longest, (3, 5))
        for found, wanted in zip(rope.looked_up(where, longest), rope(where), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_partial_rotation_leaves_the_last_dimensions() -> None:
    rope = RotaryEmbedding({"rope_theta": 10000.0, "partial_rotary_factor": 0.25}, 16)
    x = torch.randn(1, 3, 2, 16)
    y = rotate(x, rope(torch.tensor([[5, 6, 7]])))
    assert torch.equal(x[..., 4:], y[..., 4:])
    assert not torch.allclose(x[..., :4], y[..., :4])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "rope_type 'dynamic' is not supported"),
        ({"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}, "differ by layer type"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.4}, "3 of 8 head dimensions are rotated"),
    ],
)
def test_what_cannot_be_rotated_is_refused(parameters, message) -> None:
    with pytest.raises(ValueError, match=message):
        inverse_frequencies(parameters, 8)
