"""How features are written: as they are, rounded to bf16, or as int8 with a scale per token and tap."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

Columns = dict[str, tuple[torch.dtype, int]]  # name: type and values per token


class FeatureFormat(ABC):
    """Turns ``[n, T * H]`` features into tensors with one line per token, and back.

    Attributes:
        tolerance: Relative error of a token's features below which the same weights must have made them. Storage and
            products in bf16 cost up to 0.015 on SmolLM2-135M.
    """

    tolerance: float = 0.05

    @abstractmethod
    def columns(self, taps: int, hidden: int) -> Columns:
        """Type and width of each stored tensor of the features."""

    @abstractmethod
    def encode(self, features: Tensor, taps: int) -> dict[str, Tensor]:
        """The tensors to store."""

    @abstractmethod
    def decode(self, stored: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
        """New ``[n, T * H]`` features in ``dtype``."""

    @property
    @abstractmethod
    def hidden_dtype(self) -> torch.dtype:
        """Type in which last hidden states are stored: those give the soft labels, so they are never quantised."""


class Plain(FeatureFormat):
    """Values in one floating-point type.

    Args:
        dtype: The type.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    @override
    def columns(self, taps: int, hidden: int) -> Columns:
        return {"features": (self.dtype, taps * hidden)}

    @override
    def encode(self, features: Tensor, taps: int) -> dict[str, Tensor]:
        return {"features": features.to(self.dtype)}

    @override
    def decode(self, stored: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
        return stored["features"].to(dtype, copy=True)  # what comes in lies in the mapped file

    @property
    @override
    def hidden_dtype(self) -> torch.dtype:
        return self.dtype


class Int8(FeatureFormat):
    """Integers -127..127 and an fp32 scale per token and tap: half the size of bf16.

    A value is off by at most half a step, 1/254 of the largest absolute value of its token and tap. Taps carry single
    huge values (SmolLM2-135M: up to 27,776 in a tap of RMS 62), beside which a token's other values round to little or
    nothing; that is mostly the first token of a text.
    """

    tolerance = 0.12  # a token with one huge value loses up to 0.055 of its norm

    @override
    def columns(self, taps: int, hidden: int) -> Columns:
        return {"features": (torch.int8, taps * hidden), "scales": (torch.float32, taps)}

    @override
    def encode(self, features: Tensor, taps: int) -> dict[str, Tensor]:
        values = features.float().unflatten(-1, (taps, -1))
        scales = values.abs().amax(-1) / 127
        steps = values / scales.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
        return {"features": steps.round().clamp(-127, 127).to(torch.int8).flatten(-2), "scales": scales}

    @override
    def decode(self, stored: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
        scales = stored["scales"]
        values = stored["features"].float().unflatten(-1, (scales.shape[-1], -1))
        return values.mul_(scales[..., None]).flatten(-2).to(dtype)

    @property
    @override
    def hidden_dtype(self) -> torch.dtype:
        return torch.bfloat16


FORMATS: dict[str, FeatureFormat] = {
    "bfloat16": Plain(torch.bfloat16),
    "float32": Plain(torch.float32),
    "int8": Int8(),
}
