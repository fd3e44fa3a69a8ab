"""What differs between model families: which can be a target at all, and how embedding and logits are scaled."""

from __future__ import annotations

from typing import Any

from torch import nn

# the state of these cannot go back to an earlier token by moving a length
_STATE = "its state is a running summary that cannot roll back to an earlier token when drafts are rejected"
_WITHOUT_ROLLBACK = {
    "bamba": "Mamba layers",
    "falcon_h1": "Mamba layers",
    "falcon_mamba": "Mamba layers",
    "granitemoehybrid": "Mamba layers",
    "jamba": "Mamba layers",
    "kimi_linear": "linear attention",
    "lfm2": "short convolutions",
    "lfm2_moe": "short convolutions",
    "mamba": "Mamba layers",
    "mamba2": "Mamba layers",
    "minimax": "linear attention",
    "nemotron_h": "Mamba layers",
    "olmo_hybrid": "linear attention",
    "qwen3_5": "linear attention",
    "qwen3_5_moe": "linear attention",
    "qwen3_next": "linear attention",
    "recurrent_gemma": "recurrent layers",
    "rwkv": "recurrent layers",
    "xlstm": "recurrent layers",
    "zamba": "Mamba layers",
    "zamba2": "Mamba layers",
}
# frequencies that transformers chooses anew for each forward
_LENGTH_DEPENDENT = {"dynamic", "longrope"}
_LAYER_TYPES = {"full_attention", "sliding_attention", "attention"}


def refuse_unfit(config: Any, name: str, model_class: type | None = None) -> None:
    """Refuse, from the config alone, a model that cannot be verified against.

    Args:
        config: Configuration as transformers loads it, possibly of a composite model.
        name: Name of the target, for the message.
        model_class: The class that would be loaded, if known; a class that calls itself stateful is refused.

    Raises:
        ValueError: Naming the target, its family and the reason.
    """
    text = config.get_text_config()
    family = config.model_type if config.model_type in _WITHOUT_ROLLBACK else text.model_type

    def refuse(reason: str) -> None:
        raise ValueError(
            f"target {name!r} ({family}) cannot be used: {reason}; "
            "choose a decoder with full or sliding-window attention"
        )

    if getattr(config, "is_encoder_decoder", False):
        refuse("it is an encoder-decoder, and specdraft verifies decoder-only models")
    if family in _WITHOUT_ROLLBACK:
        refuse(f"it has {_WITHOUT_ROLLBACK[family]}, and {_STATE}")
    strange = sorted(set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES)
    if strange:
        refuse(f"it has layers of type {', '.join(strange)}, whose state the cache cannot hold and roll back")
    if getattr(text, "attention_chunk_size", None):
        refuse(f"it has chunked attention ({text.attention_chunk_size} tokens), which the cache does not model")
    if getattr(model_class, "_is_stateful", False):
        refuse(_STATE)
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = {str(each.get("rope_type")) for each in [rope, *rope.values()] if isinstance(each, dict)}
    if strange := sorted(kinds & _LENGTH_DEPENDENT):
        refuse(
            f"its rotary embedding ({', '.join(strange)}) follows the longest position of a batch: a row's output "
            "would depend on its neighbours and drafts"
        )
    if getattr(text, "use_bidirectional_attention", False):
        refuse("its attention is bidirectional")


def logit_multiplier(config: Any) -> float:
    """Factor of the logits: Cohere multiplies by ``logit_scale``, Granite divides by ``logits_scaling``."""
    scale = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)
    return float(scale) if scale is not None else 1.0 / float(divisor) if divisor is not None else 1.0


def logit_softcap(config: Any) -> float | None:
    """Bound of the logits (Gemma), or None."""
    cap = getattr(config, "final_logit_softcapping", None)
    return None if cap is None else float(cap)


def embedding_multiplier(config: Any) -> float:
    """Factor that the *model* applies behind its embedding module (Granite).

    Gemma's scaling is in the module itself (:func:`module_scale`) and so is not repeated here.
    """
    return float(getattr(config, "embedding_multiplier", None) or 1.0)


def module_scale(embedding: nn.Module) -> float:
    """Factor that the embedding module itself applies to its rows (Gemma: the root of the width), else 1.

    Gemma's module holds it as a number and as a buffer, which is rounded where the weights are half precision.
    """
    scale = getattr(embedding, "scalar_embed_scale", getattr(embedding, "embed_scale", 1.0))
    return 1.0 if scale is None else float(scale)


def decoder_layers(decoder: nn.Module, count: int) -> nn.ModuleList:
    """The list of decoder layers, whatever the family calls it.

    Raises:
        ValueError: If there is no list of ``count`` layers.
    """
    for _, module in decoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"{type(decoder).__name__} has no list of {count} decoder layers, so no layer can be tapped")
