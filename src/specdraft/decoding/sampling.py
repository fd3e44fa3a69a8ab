"""From logits to the distribution that is sampled, and a draw from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn from the target.

    The filters change the target's law itself, so that verification against the filtered law stays lossless.

    Args:
        temperature: Divides the logits; 0 is greedy.
        top_p: Keep the smallest set of most probable tokens whose mass reaches this; 1 keeps all.
        top_k: Keep this many most probable tokens, before ``top_p``; 0 keeps all.

    Raises:
        ValueError: If a value is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 (greedy) or a positive number, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}; 1 keeps every token")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, got {self.top_k}; 0 keeps every token")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0


def to_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities of the law that is sampled, in float32 (float64 stays).

    Args:
        logits: ``[..., V]`` in any floating-point type.
        params: Temperature and filters.

    Returns:
        ``[..., V]``, one-hot where greedy.
    """
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if params.greedy:
        return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
    scores = scores / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        best = scores.topk(params.top_k, dim=-1)
        scores = torch.full_like(scores, float("-inf")).scatter_(-1, best.indices, best.values)
    probs = scores.softmax(-1)
    if params.top_p < 1:
        ordered, indices = probs.sort(dim=-1, descending=True, stable=True)
        # the mass *before* a token decides, so that the token that reaches top_p is kept and one always is
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= params.top_p, 0.0)
        probs = torch.zeros_like(probs).scatter_(-1, indices, ordered)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def sample(probs: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one token per distribution.

    Args:
        probs: ``[..., V]``; need not be normalised.
        generator: Source of randomness, on the device of ``probs``.

    Returns:
        ``[...]`` int64.
    """
    flat = torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1, generator=generator)
    return flat.view(probs.shape[:-1])


def next_tokens(logits: Tensor, params: SamplingParams, generator: torch.Generator | None = None) -> Tensor:
    """Draw ``[...]`` tokens from ``[..., V]`` logits; greedy needs no softmax."""
    return logits.argmax(-1) if params.greedy else sample(to_probs(logits, params), generator)
