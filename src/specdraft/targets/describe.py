"""From a transformers config to the plain :class:`specdraft.types.TargetSpec`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdraft.taps import check_taps, evenly_spaced_taps
from specdraft.types import TargetSpec


def describe(
    config: Any,
    name: str,
    taps: Sequence[int] | int | str | None,
    mask_token_id: int | None,
    *,
    rows: int,
    vocab_size: int,
    architecture: str = "",
) -> TargetSpec:
    """Fill the spec of a target.

    Args:
        config: Text config of the model.
        name: Name or folder of the target.
        taps: Ids of the tapped layers, a number of evenly spaced ones, ``all`` layers, or None for five (fewer in a
            shallow target).
        mask_token_id: Embedding row of undrafted slots, or None for the last one.
        rows: Rows of the input embedding.
        vocab_size: Rows of the head.
        architecture: Class of the model in transformers.

    Raises:
        ValueError: If taps or mask token do not fit the target.
    """
    layers = int(config.num_hidden_layers)
    heads, kv_heads, head_dim = _attention_shape(config)
    mask = min(rows, vocab_size) - 1 if mask_token_id is None else mask_token_id
    if not 0 <= mask < min(rows, vocab_size):
        raise ValueError(
            f"mask_token_id {mask} is no row of the embedding of {name!r}; choose one in 0..{min(rows, vocab_size) - 1}"
        )
    return TargetSpec(
        name=name,
        hidden_size=int(config.hidden_size),
        vocab_size=vocab_size,
        num_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size),
        rms_norm_eps=float(getattr(config, "rms_norm_eps", None) or 1e-6),
        rope_parameters=_rope(config),
        max_position_embeddings=int(getattr(config, "max_position_embeddings", None) or 32768),
        taps=_taps(taps, layers),
        mask_token_id=mask,
        architecture=architecture,
    )


def _taps(taps: Sequence[int] | int | str | None, layers: int) -> tuple[int, ...]:
    if isinstance(taps, str):
        if taps != "all":
            raise ValueError(f"taps {taps!r} is unknown; use all, a number, a list of layers, or null for five")
        return tuple(range(layers))
    if taps is None:
        return evenly_spaced_taps(layers, min(5, layers))
    if isinstance(taps, int):
        return evenly_spaced_taps(layers, taps)
    if not taps:
        raise ValueError("taps is empty; name at least one layer, or use null for five evenly spaced ones")
    check_taps(tuple(taps), layers)
    return tuple(taps)


def _attention_shape(config: Any) -> tuple[int, int, int]:
    """Query heads, key/value heads and head width."""
    heads = int(config.num_attention_heads)
    kv_heads = getattr(config, "num_key_value_heads", None)
    width = getattr(config, "head_dim", None)
    return heads, int(kv_heads or heads), int(width or config.hidden_size // heads)


def _rope(config: Any) -> dict[str, Any]:
    """RoPE parameters as builtins; of a family with several kinds of layers, those of full attention."""
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return {"rope_type": "default", "rope_theta": float(getattr(config, "rope_theta", None) or 10000.0)}
    plain = _builtins(rope)
    nested = {key: value for key, value in plain.items() if isinstance(value, dict)}
    if nested:
        plain = nested.get("full_attention") or next(iter(nested.values()))
    return {"rope_type": "default", **plain}


def _builtins(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _builtins(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_builtins(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
