"""One forward through the unchanged modules of transformers, with our attention, cache and taps.

The modules ask three things of their surroundings: an attention function (registered here under
:data:`ATTENTION_NAME`, which also tells transformers to build no masks), a cache object (:class:`CacheBridge`) and
somewhere to leave layer outputs (:class:`Pass`, filled by forward hooks).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from typing_extensions import override

from specdraft.attention import cached_attention, score_bias, visible_positions
from specdraft.cache import KeyValueCache

ATTENTION_NAME = "specdraft"


class StopForwardError(Exception):
    """Raised by a hook behind the last layer that is needed; caught by the caller of the forward."""


@dataclass
class Pass:
    """State of the forward that is running.

    Attributes:
        taps: Layers whose outputs are kept.
        stop_after: Layer behind which the forward ends, or None to run through.
        cache: Where keys and values live, or None for a whole-row forward.
        fresh: Tokens per row of this forward.
        document_ids: ``[N, L]`` of a packed whole-row forward, None when one causal mask serves all rows.
        explicit: Compute attention as softmax of explicit scores (a slow reference) instead of a fused kernel.
        outputs: Kept layer outputs ``[N, n, H]``.
        masks: Masks by window, built once per forward.
    """

    taps: frozenset[int]
    stop_after: int | None = None
    cache: KeyValueCache | None = None
    fresh: int = 0
    document_ids: Tensor | None = None
    explicit: bool = False
    outputs: dict[int, Tensor] = field(default_factory=dict)
    masks: dict[int | None, Tensor] = field(default_factory=dict)


_active: ContextVar[Pass | None] = ContextVar("specdraft_target_pass", default=None)


@contextmanager
def running(current: Pass) -> Iterator[Pass]:
    """Make ``current`` the pass that hooks and attention see."""
    token = _active.set(current)
    try:
        yield current
    except StopForwardError:
        pass
    finally:
        _active.reset(token)


class CacheBridge(Cache):
    """Gives the modules of transformers a :class:`KeyValueCache` to write to.

    Args:
        store: The cache of the running pass.
        where: ``[N, n]`` positions of the fresh tokens.
    """

    def __init__(self, store: KeyValueCache, where: Tensor) -> None:
        super().__init__(layers=[])
        self.store = store
        self.where = where

    @override
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.store.write(layer_idx, key_states, value_states, self.where)
        return self.store.read(layer_idx, key_states.shape[2])

    @override
    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.store.extent


def watch_layers(layers: nn.ModuleList) -> None:
    """Register the hooks that leave layer outputs in the running pass and end it early."""
    for index, layer in enumerate(layers):
        layer.register_forward_hook(_hook(index))


def _hook(index: int) -> Any:
    def keep(module: nn.Module, args: Any, output: Any) -> None:
        current = _active.get()
        if current is None:
            return
        if index in current.taps:
            current.outputs[index] = output[0] if isinstance(output, tuple) else output
        if index == current.stop_after:
            raise StopForwardError

    return keep


def _window_of(module: nn.Module, sliding_window: int | None) -> int | None:
    """The window of a layer, also where the family leaves it to the mask that we do not let transformers build."""
    config: Any = getattr(module, "config", None)
    types = getattr(config, "layer_types", None)
    index = getattr(module, "layer_idx", None)
    if sliding_window is None and types and index is not None and types[index] == "sliding_attention":
        return config.sliding_window
    return sliding_window


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in the signature that transformers calls; ``[N, Hq, n, d]`` to ``[N, n, Hq, d]``."""
    current = _active.get()
    if current is None:
        raise RuntimeError("this model belongs to an HFTarget; call HFTarget.forward or HFTarget.features")
    if kwargs.get("s_aux") is not None:
        raise ValueError(f"attention sinks of {type(module).__name__} are not supported; choose another target")
    window = _window_of(module, sliding_window)
    # an empty cache makes this a whole-row forward, whose causal kernel needs no mask: long prompts stay affordable
    if current.cache is not None and (current.cache.extent > 0 or current.cache.static):
        stop = key.shape[2]
        if window is not None and window >= stop:
            window = None
        if window not in current.masks:
            seen = visible_positions(current.cache.lengths, current.fresh, stop, window=window)
            current.masks[window] = score_bias(seen, query.shape[1] // key.shape[1], query.dtype)
        out = cached_attention(
            query, key, value, current.cache.lengths, scale=scaling, softcap=softcap, mask=current.masks[window]
        )
    else:
        out = _whole_rows(current, query, key, value, window, scaling, softcap)
    return out.transpose(1, 2).contiguous(), None


def _whole_rows(
    current: Pass,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int | None,
    scale: float | None,
    softcap: float | None,
) -> Tensor:
    length, groups = query.shape[2], query.shape[1] // key.shape[1]
    if window is not None and window >= length:
        window = None
    if softcap is None and window is None and current.document_ids is None and not current.explicit:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=groups > 1)
    if groups > 1:  # with a mask, the kernels for CUDA take grouped keys only in their slow form
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if window not in current.masks:
        current.masks[window] = _row_mask(length, window, current.document_ids, query.device)
    mask = current.masks[window]
    if softcap is None and not current.explicit:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    scores = query @ key.transpose(-1, -2) * (scale if scale is not None else query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32).to(value.dtype) @ value


def _row_mask(length: int, window: int | None, document_ids: Tensor | None, device: torch.device) -> Tensor:
    """``[1 or N, 1, L, L]`` bool; every query sees itself, so that padding yields no NaN."""
    where = torch.arange(length, device=device)
    mask = where[None, :] <= where[:, None]
    if window is not None:
        mask &= where[None, :] > where[:, None] - window
    mask = mask[None, None]
    if document_ids is not None:
        mask = mask & (document_ids[:, None, :, None] == document_ids[:, None, None, :])
    return mask


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, _attend)
