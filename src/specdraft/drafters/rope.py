"""Rotary position embedding from the target's ``rope_parameters``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

SUPPORTED = ("default", "linear", "llama3")


def inverse_frequencies(parameters: dict[str, Any], head_dim: int) -> list[float]:
    """Angular frequencies of a head, in radians per position.

    Args:
        parameters: ``rope_type`` and ``rope_theta``, the options of the type, optionally ``partial_rotary_factor``;
            named as transformers names them.
        head_dim: Width of a head.

    Returns:
        One frequency per rotated pair; the dimensions behind the last pair are not rotated.

    Raises:
        ValueError: If the type is not one of ``default``, ``linear``, ``llama3``, or the rotated width is odd.
    """
    if parameters and all(isinstance(value, dict) for value in parameters.values()):
        raise ValueError(
            f"rope_parameters differ by layer type ({', '.join(parameters)}); "
            "pass those of one type to the drafter as rope_parameters"
        )
    kind = parameters.get("rope_type", "default")
    if kind not in SUPPORTED:
        raise ValueError(
            f"rope_type {kind!r} is not supported by the drafter (only {', '.join(SUPPORTED)}); "
            "pass other rope_parameters, for example {'rope_type': 'default', 'rope_theta': "
            f"{parameters.get('rope_theta', 10000.0)}}}"
        )
    rotated = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    if rotated < 2 or rotated % 2:
        raise ValueError(f"{rotated} of {head_dim} head dimensions are rotated; partial_rotary_factor must leave pairs")
    theta = float(parameters.get("rope_theta", 10000.0))
    plain = [theta ** (-i / rotated) for i in range(0, rotated, 2)]
    if kind == "linear":
        return [f / float(parameters["factor"]) for f in plain]
    if kind == "llama3":
        return [_llama3(f, parameters) for f in plain]
    return plain


def _llama3(frequency: float, parameters: dict[str, Any]) -> float:
    """Slow down the waves longer than the original context, blend around its border, keep the short ones."""
    factor, context = float(parameters["factor"]), float(parameters["original_max_position_embeddings"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    turns = context * frequency / (2 * math.pi)  # full turns within the original context
    keep = min(1.0, max(0.0, (turns - low) / (high - low)))
    return frequency * (keep + (1 - keep) / factor)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions, always in float32.

    The frequencies are no buffer: ``module.to(bfloat16)`` would round them and the meta device would lose them.

    Args:
        parameters: See :func:`inverse_frequencies`.
        head_dim: Width of a head.
    """

    def __init__(self, parameters: dict[str, Any], head_dim: int) -> None:
        super().__init__()
        self._frequencies = inverse_frequencies(parameters, head_dim)
        self._on_device: dict[torch.device, Tensor] = {}
        self._table = (torch.empty(0), torch.empty(0))

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Map ``[N, n]`` positions to cosines and sines ``[N, n, 1, rotated / 2]`` float32."""
        return self._angles(position_ids[..., None, None])

    def looked_up(self, position_ids: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """The same for positions below ``longest``; on the CPU from a table, since a handful of sines costs threads."""
        if position_ids.device.type != "cpu":
            return self(position_ids)
        if len(self._table[0]) < longest:
            self._table = self._angles(torch.arange(longest)[:, None, None])
        cos, sin = self._table
        return cos[position_ids], sin[position_ids]

    def _angles(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        device = position_ids.device
        if device not in self._on_device:
            self._on_device[device] = torch.tensor(self._frequencies, dtype=torch.float32, device=device)
        angles = position_ids.float() * self._on_device[device]
        return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the first dimensions of ``[N, n, heads, d]`` in pairs ``(i, i + rotated / 2)``; returns ``x``'s dtype."""
    cos, sin = rope
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    # float32 cosines promote a lower precision; the product is rounded once, at the end
    turned = [(first * cos - second * sin).to(x.dtype), (second * cos + first * sin).to(x.dtype)]
    return torch.cat([*turned, rest] if rest.shape[-1] else turned, -1)
