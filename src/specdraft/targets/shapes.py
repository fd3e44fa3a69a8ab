"""What a configuration alone tells of a target: its spec, how many parameters it has, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specdraft.targets import smollm2
from specdraft.targets.describe import describe
from specdraft.targets.families import decoder_layers, refuse_unfit
from specdraft.targets.load import _config, _located, _model_class
from specdraft.types import TargetSpec


@dataclass(frozen=True)
class TargetShape:
    """A target without weights.

    Attributes:
        spec: What a drafter must know of it.
        parameters: All parameters, tied ones once.
        layer_parameters: Parameters of one decoder layer, the mean over the layers.
    """

    spec: TargetSpec
    parameters: int
    layer_parameters: int


def shape_of(
    path: str, fields: dict[str, Any] | None, taps: Sequence[int] | int | str | None, mask_token_id: int | None
) -> TargetShape:
    """Build a target on the meta device and count.

    Args:
        path: Name or folder.
        fields: Its configuration where that is known; None reads it as :func:`load_target` does.
        taps: See :func:`specdraft.targets.describe.describe`.
        mask_token_id: Embedding row of undrafted slots, or None for the last one: the row decides nothing here.

    Raises:
        FileNotFoundError: If there is no configuration.
        ValueError: If the target cannot be verified against.
    """
    if fields is not None:
        config: Any = AutoConfig.for_model(**{k: v for k, v in fields.items() if k != "source"})
    else:
        where, gguf = _located(str(smollm2.folder()) if path == smollm2.NAME else path)
        config = _config(where, gguf, path)
    refuse_unfit(config, path, _model_class(config))
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    text = config.get_text_config()
    rows = model.get_input_embeddings().weight.shape[0]
    vocab_size = model.get_output_embeddings().weight.shape[0]
    spec = describe(
        text, path, taps, mask_token_id, rows=rows, vocab_size=vocab_size, architecture=type(model).__name__
    )
    layers = decoder_layers(model.get_decoder(), spec.num_layers)
    inside = sum(p.numel() for p in layers.parameters())
    return TargetShape(spec, sum(p.numel() for p in model.parameters()), inside // spec.num_layers)
