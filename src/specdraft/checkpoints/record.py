"""A drafter with its corrector and everything that decides how to use them, whatever file they came from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class TargetFacts:
    """What a drafter says of the target that it was made for.

    Attributes:
        name: Name or folder of the target, None where the file does not say.
        hidden_size: Width H.
        vocab_size: Rows V of the head.
        num_layers: Decoder layers, None where the file does not say.
        taps: Ids of the tapped layers; ``i`` is the output of layer ``i``, HF ``hidden_states[i + 1]``.
        mask_token_id: Embedding row of the undrafted slots.
        max_position_embeddings: Longest context, in tokens.
        scales: ``embedding`` and ``multiplier`` (factors), ``softcap`` (or None) of the target's embedding and logits;
            empty where the file does not say.
        architecture: Class of the target in transformers, empty where the file does not say.
    """

    name: str | None
    hidden_size: int
    vocab_size: int
    num_layers: int | None
    taps: tuple[int, ...]
    mask_token_id: int
    max_position_embeddings: int = 32768
    scales: dict[str, float | None] = field(default_factory=dict)
    architecture: str = ""


@dataclass(frozen=True)
class DFlashOptions:
    """Options of :class:`specdraft.drafters.DFlash`, and the epsilon of its norms."""

    num_layers: int
    block_size: int
    sample_from_anchor: bool
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    causal: bool = False
    sliding_window: int | None = None
    tap_norm: bool = False
    layer_fusion: bool = False
    conv_kernel_size: int = 0
    conv_group_size: int = 16

    def init_args(self) -> dict[str, Any]:
        """Keyword arguments of the class; the epsilon is the spec's."""
        options = asdict(self)
        del options["rms_norm_eps"]
        return options

    def facts(self) -> dict[str, Any]:
        """As :func:`specdraft.checkpoints.facts.checkpoint_facts` writes the drafter."""
        names = ["block_size", "sample_from_anchor", "causal", "sliding_window", "rope_parameters"]
        names += ["conv_kernel_size", "conv_group_size"] if self.conv_kernel_size else []
        return {"class": "DFlash", **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class CorrectorPart:
    """A corrector.

    Attributes:
        name: Class in :mod:`specdraft.correctors`.
        facts: What a checkpoint says of it besides the class.
        sizes: Further arguments that its shapes follow from.
        weights: Its state dict.
        candidates: Tokens per slot that it chooses from; None where it does not, or where the file does not say.
    """

    name: str = "NoCorrector"
    facts: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    weights: Tensors = field(default_factory=dict)
    candidates: int | None = None

    def init_args(self) -> dict[str, Any]:
        """Keyword arguments of the class."""
        chosen = {} if self.candidates is None else {"candidates": self.candidates}
        return {**self.facts, **self.sizes, **chosen}


@dataclass(frozen=True)
class DraftCheckpoint:
    """A drafter with its corrector.

    Attributes:
        format: Name of the format that it was read from.
        target: The target that it was made for.
        drafter: Options of the drafter.
        weights: Its state dict.
        corrector: The corrector.
        draft_token_ids: ``[D]`` int64 strictly increasing target ids of the draft vocabulary, None for all V.
        training: What the file says of the training, builtins only.
        notes: What was left out in reading and why that is harmless.
    """

    format: str
    target: TargetFacts
    drafter: DFlashOptions
    weights: Tensors
    corrector: CorrectorPart = field(default_factory=CorrectorPart)
    draft_token_ids: Tensor | None = None
    training: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        """Type of the drafter's weights."""
        return self.weights["fc.weight"].dtype


def corrector_part(name: str, facts: dict[str, Any], weights: Tensors, candidates: int | None = None) -> CorrectorPart:
    """A corrector with the arguments that its shapes follow from.

    Args:
        name: Class in :mod:`specdraft.correctors`.
        facts: What a checkpoint says of it besides the class.
        weights: Its state dict.
        candidates: Tokens per slot that it chooses from, if it does and if known.
    """
    sizes: dict[str, int] = {}
    if name == "DCOCO":
        rows = {"width": "token_proj.weight", "pair_width": "pair_proj.weight", "hidden": "mlp_in.weight"}
        sizes = {option: weights[tensor].shape[0] for option, tensor in rows.items()}
        facts = {"rms_inputs": False, **facts}  # files from before the option do not name it
    return CorrectorPart(name, facts, sizes, weights, candidates)
