"""First pass over new prompts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specdraft.cache import KeyValueCache
from specdraft.decoding.sampling import SamplingParams, next_tokens
from specdraft.types import DecodingTarget


def prefill(
    target: DecodingTarget,
    prompts: list[Tensor],
    params: SamplingParams,
    generator: torch.Generator | None,
    *,
    features: bool = False,
) -> tuple[Tensor, KeyValueCache, Tensor | None]:
    """Run prompts together, right-padded, in a cache of their own.

    Padding is harmless: no real position attends to it, and the cache lengths end before it.

    Args:
        target: The target.
        prompts: n tensors ``[L_i]`` int64.
        params: How the first new token is drawn.
        generator: Source of randomness.
        features: Whether the taps are wanted.

    Returns:
        First new token ``[n]``, the advanced cache, and the features ``[n, L, T * H]`` or None.
    """
    lengths = [len(prompt) for prompt in prompts]
    ids = pad_sequence(prompts, batch_first=True).to(target.device)
    cache = target.new_cache(len(prompts), max(lengths))
    out = target.forward(ids, cache, features=features)
    assert out.hidden is not None
    counts = torch.tensor(lengths, device=target.device)
    cache.advance(counts, extent=max(lengths))
    # the head is as wide as the vocabulary: only the last real position of each row goes through it
    last = out.hidden[torch.arange(len(prompts), device=target.device), counts - 1]
    return next_tokens(target.head(last), params, generator), cache, out.features
