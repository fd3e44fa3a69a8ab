"""Where the frozen target of a run comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from specdraft.targets.hf import HFTarget
from specdraft.targets.load import load_target


@dataclass
class TargetConfig:
    """Where the frozen target comes from.

    Attributes:
        path: Hugging Face name, folder, ``.gguf`` file, or the built-in ``smollm2-135m-instruct``.
        dtype: Floating-point type of its weights: float32, bfloat16, or auto (bfloat16 on CUDA, else float32).
        attention: Attention implementation of transformers, or auto.
        taps: Ids of the tapped layers, a number of evenly spaced taps, ``all``, or null for 5 evenly spaced.
        mask_token_id: Existing embedding row that fills the slots to draft; null picks one and stores it.
    """

    path: str
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    taps: list[int] | int | Literal["all"] | None = None
    mask_token_id: int | None = None

    def load(self, device: torch.device) -> HFTarget:
        """Load it onto a device."""
        dtype = self.dtype
        if dtype == "auto":
            dtype = "bfloat16" if device.type == "cuda" else "float32"
        return load_target(
            self.path,
            dtype=dtype,
            attention=self.attention,
            taps=self.taps,
            mask_token_id=self.mask_token_id,
            device=device,
        )
