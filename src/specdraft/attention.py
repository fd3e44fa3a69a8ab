"""Attention of decoding: fresh queries over a cache of per-row lengths, grouped keys never repeated."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def cached_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attend from n fresh positions per row to the cached ones and to themselves.

    Query ``j`` sits at position ``lengths + j``. Causal queries see positions up to their own; others see all n fresh
    positions (a draft block). Groups of query heads are folded into the query rows, so that keys are not repeated.

    Args:
        queries: ``[N, Hq, n, d]``.
        keys: ``[N, Hkv, S, d]`` with the fresh keys at ``lengths..lengths + n - 1``.
        values: ``[N, Hkv, S, d]``.
        lengths: ``[N]`` int64, cached positions before the fresh ones.
        causal: Whether a query sees later fresh positions.
        window: Sliding window in positions, the query's own included.
        scale: Factor of the scores (default ``d ** -0.5``).
        softcap: ``softcap * tanh(score / softcap)``, as Gemma 2 does.

    Returns:
        ``[N, Hq, n, d]``.
    """
    rows, heads, fresh, width = queries.shape
    groups = heads // keys.shape[1]
    where = torch.arange(keys.shape[2], device=keys.device)
    own = lengths[:, None] + torch.arange(fresh, device=lengths.device)  # [N, n]
    last = own if causal else own[:, -1:].expand_as(own)
    mask = where <= last[..., None]  # [N, n, S]
    if window is not None:
        mask &= where > own[..., None] - window
    mask = mask[:, None].repeat(1, 1, groups, 1)  # [N, 1, groups * n, S]
    folded = queries.reshape(rows, heads // groups, groups * fresh, width)
    if softcap is None:
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
    else:
        scores = folded @ keys.transpose(-1, -2) * (scale if scale is not None else width**-0.5)
        scores = softcap * torch.tanh(scores / softcap)
        out = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values
    return out.reshape(rows, heads, fresh, width)
