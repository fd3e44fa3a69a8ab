"""Attention of decoding: fresh queries over a cache of per-row lengths, grouped keys never repeated."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from specdraft.cache import KeyValueCache

_FEW_QUERIES = 32  # per key/value head; above, the fused kernel is as fast


def visible_positions(
    lengths: Tensor, fresh: int, stop: int, *, causal: bool = True, window: int | None = None
) -> Tensor:
    """Which stored positions each of ``fresh`` queries sees; the same for every layer of a forward.

    Args:
        lengths: ``[N]`` int64, cached positions before the fresh ones.
        fresh: Number n of fresh positions.
        stop: Number S of stored positions that are looked at.
        causal: Whether a query sees only the fresh positions up to its own.
        window: Sliding window in positions, the query's own included.

    Returns:
        ``[N, n, S]`` bool.
    """
    where = torch.arange(stop, device=lengths.device)
    own = lengths[:, None] + torch.arange(fresh, device=lengths.device)  # [N, n]
    last = own if causal else own[:, -1:].expand_as(own)
    mask = where <= last[..., None]
    if window is not None:
        mask &= where > own[..., None] - window
    return mask


def score_bias(visible: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """Turn ``[N, n, S]`` bool into what is added to the scores of folded query heads.

    Args:
        visible: Positions that each query sees.
        groups: Query heads per key/value head.
        dtype: Type of the queries.

    Returns:
        ``[N, groups * n, S]``: 0 where visible, -inf elsewhere.
    """
    bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
    return bias.repeat(1, groups, 1)


def decoding_mask(
    cache: KeyValueCache,
    fresh: int,
    groups: int,
    dtype: torch.dtype,
    *,
    causal: bool = True,
    window: int | None = None,
) -> Tensor | None:
    """Additive scores for ``fresh`` positions behind a cache, the same for every layer; None where all is visible.

    Args:
        cache: The cache, before its lengths move.
        fresh: Number n of fresh positions.
        groups: Query heads per key/value head.
        dtype: Type of the queries.
        causal: Whether a query is blind to later fresh positions.
        window: Sliding window in positions, the query's own included.

    Returns:
        ``[N, groups * n, S]`` for the S positions that :meth:`KeyValueCache.read` gives, or None.
    """
    stop = cache.readable(fresh)
    if window is not None and window >= stop and not cache.static:
        window = None
    # a single row is exactly as long as the storage that is read
    if cache.rows == 1 and not cache.static and window is None and (fresh == 1 or not causal):
        return None
    return score_bias(visible_positions(cache.lengths, fresh, stop, causal=causal, window=window), groups, dtype)


def folded_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of ``[N, Hq, n, d]`` queries whose groups are folded into rows, so that keys are not repeated.

    Args:
        queries: ``[N, Hq, n, d]``.
        keys: ``[N, Hkv, S, d]``.
        values: ``[N, Hkv, S, d]``.
        mask: ``[N, groups * n, S]`` additive scores of :func:`score_bias`, None where every query sees everything.
        scale: Factor of the scores (default ``d ** -0.5``).
        softcap: ``softcap * tanh(score / softcap)``, as Gemma 2 does.

    Returns:
        ``[N, Hq, n, d]``.
    """
    rows, heads, fresh, width = queries.shape
    groups = heads // keys.shape[1]
    folded = queries.reshape(rows, heads // groups, groups * fresh, width)
    bias = None if mask is None else mask[:, None]
    # on the CPU the fused kernel walks the (row, head) pairs with tiny products of its own, which costs a quarter more
    few = keys.device.type == "cpu" and keys.dtype == torch.float32 and rows > 1 and groups * fresh <= _FEW_QUERIES
    if softcap is None and not few:
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=bias, scale=scale)
    else:
        scores = folded * (scale if scale is not None else width**-0.5) @ keys.transpose(-1, -2)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores if bias is None else scores + bias
        out = scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values
    return out.reshape(rows, heads, fresh, width)


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
    mask: Tensor | None = None,
) -> Tensor:
    """Attend from n fresh positions per row to the cached ones and to themselves.

    Query ``j`` sits at position ``lengths + j``. Causal queries see positions up to their own; others see all n fresh
    positions (a draft block). Groups of query heads are folded into the query rows, so that keys are not repeated.

    Args:
        queries: ``[N, Hq, n, d]``.
        keys: ``[N, Hkv, S, d]`` with the fresh keys at ``lengths..lengths + n - 1``.
        values: ``[N, Hkv, S, d]``.
        lengths: ``[N]`` int64, cached positions before the fresh ones.
        causal: Whether a query is blind to later fresh positions.
        window: Sliding window in positions, the query's own included.
        scale: Factor of the scores (default ``d ** -0.5``).
        softcap: ``softcap * tanh(score / softcap)``, as Gemma 2 does.
        mask: ``[N, groups * n, S]`` additive scores of :func:`score_bias`, to build them once for all layers; then
            ``causal`` and ``window`` are not looked at.

    Returns:
        ``[N, Hq, n, d]``.
    """
    if mask is None:
        seen = visible_positions(lengths, queries.shape[2], keys.shape[2], causal=causal, window=window)
        mask = score_bias(seen, queries.shape[1] // keys.shape[1], queries.dtype)
    return folded_attention(queries, keys, values, mask, scale=scale, softcap=softcap)
