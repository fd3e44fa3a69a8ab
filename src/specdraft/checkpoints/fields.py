"""Fields of a public ``config.json``: written from a checkpoint, read back without guessing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specdraft.checkpoints.record import DFlashOptions, DraftCheckpoint, TargetFacts, Tensors

Config = dict[str, Any]
# weights of the frozen target, and tables that follow from the config: read past
FROZEN = ("embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight")
DERIVED = ("rotary_emb.inv_freq",)
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


def required(config: Mapping[str, Any], name: str, where: str, example: str) -> Any:
    """A field that must be there.

    Args:
        config: The fields.
        name: The field.
        where: Which file and object they are in, for the message.
        example: What to add, with its meaning.

    Raises:
        ValueError: Saying what to add.
    """
    if config.get(name) is None:
        raise ValueError(f"{where} does not say {name}, and specdraft does not guess it; add {example}")
    return config[name]


def integer(config: Mapping[str, Any], name: str, where: str, low: int = 1) -> int:
    """A whole number that must be there.

    Raises:
        ValueError: If it is missing, no whole number, or too small.
    """
    value = required(config, name, where, f'"{name}": a whole number')
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{where}: {name} is {value!r}; it must be a whole number of at least {low}")
    return value


def slots(config: Mapping[str, Any], where: str, name: str = "sample_from_anchor") -> bool:
    """Which token a slot predicts.

    Raises:
        ValueError: If the file does not say, or not with true or false.
    """
    example = (
        f'"{name}": false if slot i predicts the token at p+i (z-lab DFlash, B-1 drafts), or '
        f'"{name}": true if it predicts p+1+i (DeepSpec, Domino, DCOCO, B drafts)'
    )
    value = required(config, name, where, example)
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {name} is {value!r}; it must be true or false")
    return value


def layer_ids(config: Mapping[str, Any], name: str, where: str, shift: int, num_layers: int | None) -> tuple[int, ...]:
    """Taps in specdraft's numbering.

    Args:
        config: The fields.
        name: The field.
        where: Which file and object they are in.
        shift: What the format's numbers are above ours.
        num_layers: Layers of the target, if known.

    Raises:
        ValueError: If the file does not say, or a layer cannot be tapped.
    """
    meaning = "the output of layer i" if not shift else "HF hidden_states[i], the output of layer i-1"
    values = required(config, name, where, f'"{name}": [...], where i is {meaning}')
    if not isinstance(values, list) or not values or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise ValueError(f"{where}: {name} is {values!r}; it must be a list of whole numbers")
    taps = tuple(value - shift for value in values)
    if len(set(taps)) != len(taps):
        raise ValueError(f"{where}: {name} {values} names a layer twice")
    for tap, value in zip(taps, values, strict=True):
        if tap == -1:
            raise ValueError(f"{where}: {name} {value} is the output of the embedding, which specdraft does not tap")
        if tap < 0 or (num_layers is not None and tap >= num_layers):
            raise ValueError(f"{where}: {name} {value} is out of range: the target has {num_layers} layers")
        if num_layers is not None and tap == num_layers - 1:
            raise ValueError(f"{where}: {name} {value} {LAST_LAYER}")
    return taps


LAST_LAYER = (
    "is the last layer: hidden_states holds it behind the final norm, specdraft taps it before; "
    "the features would differ"
)


def mask_token(config: Mapping[str, Any], where: str, vocab_size: int) -> int:
    """The row of the mask token.

    Raises:
        ValueError: If the file does not say, or it is no row of the embedding.
    """
    value = integer(config, "mask_token_id", where, 0)
    if value >= vocab_size:
        raise ValueError(f"{where}: mask_token_id {value} is outside the vocabulary 0..{vocab_size - 1}")
    return value


def agreed(where: str, name: str, first: Any, second: Any) -> Any:
    """One value that may be written in two places.

    Raises:
        ValueError: If both are there and differ.
    """
    if first is not None and second is not None and first != second:
        raise ValueError(f"{where}: {name} is {first!r} in one place and {second!r} in another; make them equal")
    return second if first is None else first


def layer_fields(checkpoint: DraftCheckpoint) -> Config:
    """Fields of the Qwen3 layers that the public drafters consist of."""
    options, target = checkpoint.drafter, checkpoint.target
    kind = "full_attention" if options.sliding_window is None else "sliding_attention"
    scaling = {k: v for k, v in options.rope_parameters.items() if k != "rope_theta"}
    return {
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "hidden_size": target.hidden_size,
        "intermediate_size": options.intermediate_size,
        "num_hidden_layers": options.num_layers,
        "num_attention_heads": options.num_attention_heads,
        "num_key_value_heads": options.num_key_value_heads,
        "head_dim": options.head_dim,
        "layer_types": [kind] * options.num_layers,
        "sliding_window": options.sliding_window,
        "use_sliding_window": options.sliding_window is not None,
        "max_window_layers": options.num_layers,
        "rope_parameters": dict(options.rope_parameters),
        "rope_theta": options.rope_parameters.get("rope_theta", 10000.0),
        "rope_scaling": None if scaling.get("rope_type", "default") == "default" else scaling,
        "rms_norm_eps": options.rms_norm_eps,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_position_embeddings,
        "tie_word_embeddings": False,
        "dtype": str(checkpoint.dtype).removeprefix("torch."),
    }


def read_layers(config: Mapping[str, Any], where: str, window: int | None = None) -> dict[str, Any]:
    """Arguments of :class:`DFlashOptions` but for block, slots and causality.

    Args:
        config: The fields.
        where: Which file and object they are in.
        window: The sliding window, if another object of the file says it.

    Raises:
        ValueError: If a field is missing, or names something that specdraft's DFlash does not have.
    """
    found = {name: integer(config, name, where) for name in SIZES}
    for name, neutral in (("hidden_act", "silu"), ("attention_bias", False)):
        if config.get(name, neutral) != neutral:
            raise ValueError(f"{where}: {name} is {config[name]!r}; specdraft's DFlash has {neutral!r} only")
    kinds = set(config.get("layer_types") or ["full_attention"])
    if len(kinds) > 1:
        raise ValueError(
            f"{where}: layer_types mix {', '.join(sorted(kinds))}; specdraft's DFlash has one window for all layers"
        )
    if config.get("use_sliding_window") and not config.get("layer_types") and window is None:
        example = '"layer_types": ["sliding_attention", ...] or ["full_attention", ...], one per layer'
        required(config, "layer_types", f"{where}: use_sliding_window is true, but it", example)
    if kinds == {"sliding_attention"}:
        window = agreed(where, "the sliding window", integer(config, "sliding_window", where), window)
    eps = required(config, "rms_norm_eps", where, '"rms_norm_eps": the epsilon of the norms')
    return {
        "num_layers": found["num_hidden_layers"],
        "num_attention_heads": found["num_attention_heads"],
        "num_key_value_heads": found["num_key_value_heads"],
        "head_dim": found["head_dim"],
        "intermediate_size": found["intermediate_size"],
        "rms_norm_eps": float(eps),
        "rope_parameters": _rope(config, where),
        "sliding_window": window,
    }


def _rope(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = dict(config.get("rope_parameters") or {})
    scaling = dict(config.get("rope_scaling") or {})
    if "type" in scaling:
        scaling["rope_type"] = scaling.pop("type")
    theta = agreed(where, "rope_theta", given.get("rope_theta"), config.get("rope_theta"))
    required({"rope_theta": theta}, "rope_theta", where, '"rope_theta": the base of the rotary embedding')
    for fields in (config, given, scaling):
        if fields.get("partial_rotary_factor", 1.0) not in (None, 1.0):
            raise ValueError(
                f"{where}: partial_rotary_factor is {fields['partial_rotary_factor']!r}; the Qwen3 layers of this "
                "format rotate the whole head, so that it is open what the drafter was trained with"
            )
    kind = agreed(where, "rope_type", given.get("rope_type"), scaling.get("rope_type")) or "default"
    return {**scaling, **given, "rope_type": kind, "rope_theta": theta}


def target_facts(
    config: Mapping[str, Any],
    taps: Sequence[int],
    mask_token_id: int,
    num_layers: int | None,
    name: str | None = None,
    scales: dict[str, float | None] | None = None,
) -> TargetFacts:
    """What the fields say of the target; sizes must have been checked."""
    longest = config.get("max_position_embeddings") or 32768
    return TargetFacts(
        name, config["hidden_size"], config["vocab_size"], num_layers, tuple(taps), mask_token_id, longest, scales or {}
    )


def convolutions(config: Mapping[str, Any], where: str, trained: bool) -> dict[str, Any]:
    """Options of DFlash 2's convolutions, none unless they are trained.

    Raises:
        ValueError: If a field is missing.
    """
    names = ("conv_kernel_size", "conv_group_size") if trained else ()
    return {name: integer(config, name, where, 1) for name in names}


def check_backbone(tensors: Tensors, options: DFlashOptions, target: TargetFacts, where: str) -> Tensors:
    """The drafter's own tensors, all there and of the shapes that the fields imply.

    Raises:
        ValueError: Naming the first tensor that is missing, unknown or of another shape.
    """
    tensors = {name: t for name, t in tensors.items() if name not in FROZEN and not name.endswith(DERIVED)}
    wanted = _shapes(options, target)
    for name, shape in wanted.items():
        if name not in tensors:
            raise ValueError(f"{where}: the tensor {name!r} is missing from the weights; the file is incomplete")
        if tuple(tensors[name].shape) != shape:
            hint = f", which follows from {len(target.taps)} taps" if name == "fc.weight" else ""
            raise ValueError(
                f"{where}: {name} is {tuple(tensors[name].shape)}, the fields say {shape}{hint}; correct the fields"
            )
    if unknown := sorted(set(tensors) - set(wanted)):
        raise ValueError(f"{where}: specdraft does not know the tensor {unknown[0]!r}, so the drafter would differ")
    return tensors


def _shapes(options: DFlashOptions, target: TargetFacts) -> dict[str, tuple[int, ...]]:
    size, width = target.hidden_size, options.head_dim
    queries, keys = options.num_attention_heads * width, options.num_key_value_heads * width
    layer = {
        "self_attn.q_proj.weight": (queries, size),
        "self_attn.k_proj.weight": (keys, size),
        "self_attn.v_proj.weight": (keys, size),
        "self_attn.o_proj.weight": (size, queries),
        "self_attn.q_norm.weight": (width,),
        "self_attn.k_norm.weight": (width,),
        "mlp.gate_proj.weight": (options.intermediate_size, size),
        "mlp.up_proj.weight": (options.intermediate_size, size),
        "mlp.down_proj.weight": (size, options.intermediate_size),
        "input_layernorm.weight": (size,),
        "post_attention_layernorm.weight": (size,),
    }
    out: dict[str, tuple[int, ...]] = {
        "fc.weight": (size, len(target.taps) * size),
        "hidden_norm.weight": (size,),
        "norm.weight": (size,),
    }
    if taps := options.conv_kernel_size:
        rows = 2 * taps * size // options.conv_group_size
        for part in ("attention_conv", "mlp_conv"):
            layer |= {f"{part}.base_kernel": (2, taps, size), f"{part}.kernel_projection.weight": (rows, size)}
    for index in range(options.num_layers):
        out.update({f"layers.{index}.{name}": shape for name, shape in layer.items()})
    return out


def dump(config: Mapping[str, Any]) -> str:
    """The text of a ``config.json``."""
    return json.dumps(config, indent=2, sort_keys=True) + "\n"
