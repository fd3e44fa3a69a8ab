"""Options that a public format lacks, written as weights that it has, where the function stays the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specdraft.checkpoints.record import DraftCheckpoint, Tensors

CONVOLUTIONS = ("attention_conv", "mlp_conv")
CONVOLUTION_TAPS, CONVOLUTION_GROUP = 2, 16  # as published


def fold_layer_fusion(checkpoint: DraftCheckpoint) -> DraftCheckpoint:
    """Write the fusion of the taps as one ``fc`` over their concatenation, if all layers mix them alike.

    ``fc(sum_t m_t tap_t)`` is ``[m_1 fc ; ... ; m_T fc]`` over ``[tap_1 ; ... ; tap_T]``. With per-layer mixtures
    that differ, every layer has a context of its own, which the public formats do not have; such a drafter comes
    back unchanged, as does one with ``tap_norm``.
    """
    options = checkpoint.drafter
    if not options.layer_fusion or options.tap_norm:
        return checkpoint
    mix = checkpoint.weights["tap_mix"]
    if not torch.equal(mix, mix[:1].expand_as(mix)):
        return checkpoint
    weights = {name: tensor for name, tensor in checkpoint.weights.items() if name != "tap_mix"}
    weights["fc.weight"] = torch.cat([weights["fc.weight"] * share for share in mix[0].softmax(-1)], 1)
    return replace(checkpoint, drafter=replace(options, layer_fusion=False), weights=weights)


def wants_identities(checkpoint: DraftCheckpoint) -> bool:
    """Whether it is a DFlash 2 without convolutions, whose loaders ask for some, and its sizes allow them."""
    options = checkpoint.drafter
    fits = checkpoint.target.hidden_size % CONVOLUTION_GROUP == 0 and options.block_size >= CONVOLUTION_TAPS
    return checkpoint.corrector.name == "SelectorCorrector" and not options.conv_kernel_size and fits


def convolution_fields(checkpoint: DraftCheckpoint) -> dict[str, int]:
    """Sizes of the convolutions, also of those that :func:`identities` adds; empty without any."""
    options = checkpoint.drafter
    if wants_identities(checkpoint):
        return {"conv_kernel_size": CONVOLUTION_TAPS, "conv_group_size": CONVOLUTION_GROUP}
    if not options.conv_kernel_size:
        return {}
    return {"conv_kernel_size": options.conv_kernel_size, "conv_group_size": options.conv_group_size}


def identities(checkpoint: DraftCheckpoint) -> Tensors:
    """Convolutions that change nothing for a checkpoint that :func:`wants_identities`; else empty."""
    if not wants_identities(checkpoint):
        return {}
    like, width = checkpoint.weights["fc.weight"], checkpoint.target.hidden_size
    return identity_convolutions(checkpoint.drafter.num_layers, width, like, CONVOLUTION_TAPS, CONVOLUTION_GROUP)


def identity_convolutions(num_layers: int, hidden_size: int, like: Tensor, taps: int, group: int) -> Tensors:
    """DFlash 2's convolutions that change nothing: one on the slot itself, zero on the others, no dynamic part.

    Args:
        num_layers: Layers of the drafter.
        hidden_size: H.
        like: A weight of the drafter, for the dtype.
        taps: Kernel size k.
        group: Channels that share a dynamic kernel.

    Returns:
        Per layer and side of the block ``base_kernel`` ``[2, k, H]`` and ``kernel_projection.weight``
        ``[2 k H / group, H]``.
    """
    base = like.new_zeros(2, taps, hidden_size)
    base[:, 0] = 1
    rows = 2 * taps * hidden_size // group
    out: Tensors = {}
    for layer in range(num_layers):
        for name in CONVOLUTIONS:
            out[f"layers.{layer}.{name}.base_kernel"] = base.clone()
            out[f"layers.{layer}.{name}.kernel_projection.weight"] = like.new_zeros(rows, hidden_size)
    return out


def without_identities(config: Mapping[str, Any], tensors: Tensors, where: str) -> tuple[Tensors, bool]:
    """Leave out convolutions that change nothing.

    Args:
        config: Fields, which may announce convolutions.
        tensors: The tensors.
        where: What to name in errors.

    Returns:
        The tensors, and whether convolutions are left among them, which is all or none.

    Raises:
        ValueError: If convolutions are announced and none are there.
    """
    rest = {name: t for name, t in tensors.items() if not any(f".{part}." in name for part in CONVOLUTIONS)}
    if config.get("conv_kernel_size") is not None and len(rest) == len(tensors):
        raise ValueError(
            f"{where}: conv_kernel_size is {config['conv_kernel_size']!r}, but the weights hold no convolutions; "
            "the file is incomplete"
        )
    for name in tensors.keys() - rest.keys():
        same = torch.zeros_like(tensors[name])
        if name.endswith("base_kernel"):
            same[:, 0] = 1
        if not torch.equal(tensors[name], same):
            return tensors, True
    return rest, False
