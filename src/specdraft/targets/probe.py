"""The check that a target reproduces the model it was made from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdraft.targets.hf import HFTarget

_TOKENS = 4
# rounding of the other order of operations, relative to the largest value
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def probe_ids(vocab_size: int, device: torch.device) -> Tensor:
    """Four different tokens ``[1, 4]`` spread over the vocabulary."""
    return (torch.arange(1, 1 + _TOKENS, device=device) * vocab_size // (_TOKENS + 2)).clamp(max=vocab_size - 1)[None]


@torch.no_grad()
def reference_of(model: Any) -> tuple[Tensor, Tensor]:
    """The model's own logits ``[1, 4, V]`` and input embeddings ``[1, 4, H]``, before a target takes it over."""
    embedding = model.get_input_embeddings().weight
    ids = probe_ids(embedding.shape[0], embedding.device)
    out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
    return out.logits, out.hidden_states[0]


@torch.no_grad()
def verify_target(target: HFTarget, logits: Tensor, embeds: Tensor) -> None:
    """Compare a cached forward in two steps, and the embedding, with the model's own.

    Args:
        target: The target to check.
        logits: ``[1, 4, V]`` of :func:`reference_of`.
        embeds: ``[1, 4, H]`` of :func:`reference_of`.

    Raises:
        ValueError: Naming both numbers where they differ most.
    """
    ids = probe_ids(target.embedding_rows, target.device)
    cache = target.new_cache(1, _TOKENS)
    logits_here = []
    for part in ids.split(2, 1):
        hidden = target.forward(part, cache, features=False).hidden
        assert hidden is not None  # a cached forward always runs to the end
        logits_here.append(target.head(hidden))
        cache.advance(2, extent=int(cache.extent) + 2)
    _compare(torch.cat(logits_here, 1), logits, target, "logit")
    if not target.adds_positions:
        _compare(target.embed(ids), embeds, target, "embedding")


def _compare(ours: Tensor, theirs: Tensor, target: HFTarget, what: str) -> None:
    ours, theirs = ours.float().flatten(), theirs.float().flatten()
    if ours.shape != theirs.shape:
        raise ValueError(f"target {target.spec.name!r}: {len(ours)} {what} values, but the model has {len(theirs)}")
    gap = (ours - theirs).abs()
    worst = int(gap.argmax())
    # not (gap <= ...), so that NaN is refused too
    if not float(gap[worst]) <= _TOLERANCE.get(target.dtype, 1e-1) * float(theirs.abs().max()):
        raise ValueError(
            f"target {target.spec.name!r} ({target.config.model_type}) is not reproduced: {what} "
            f"{float(ours[worst]):.5f} here, {float(theirs[worst]):.5f} in the model; this family is not supported"
        )
