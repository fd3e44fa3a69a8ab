"""A target as far as its configuration tells: shapes without weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from specdraft.targets import FrozenHead, TargetConfig
from specdraft.targets.shapes import TargetShape, shape_of
from specdraft.types import TargetSpec


def published() -> dict[str, dict[str, Any]]:
    """Configurations that are packaged, by name."""
    text = resources.files("specdraft.estimate").joinpath("published.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def target_shape(config: TargetConfig) -> TargetShape:
    """Shape of a run's target from a packaged configuration, a folder's ``config.json``, or the local cache.

    Raises:
        FileNotFoundError: If no configuration is found.
    """
    fields = None if Path(config.path).is_dir() else published().get(config.path)
    return shape_of(config.path, fields, config.taps, config.mask_token_id)


@dataclass
class ShapeTarget:
    """Stands for the frozen target: embedding and head hold no data.

    Attributes:
        spec: The target.
        embedding: ``[V, H]``.
        head: The head over the whole vocabulary.
        tokenizer: None.
    """

    spec: TargetSpec
    embedding: Tensor
    head: FrozenHead
    tokenizer: None = None

    @classmethod
    def make(cls, spec: TargetSpec, dtype: torch.dtype) -> ShapeTarget:
        """Allocate it, under a mode in which that costs nothing."""
        embedding = torch.empty(spec.vocab_size, spec.hidden_size, dtype=dtype)
        return cls(spec, embedding, FrozenHead(torch.empty_like(embedding), pack=False))

    @property
    def embed(self) -> Callable[[Tensor], Tensor]:
        """The input embedding."""
        return lambda ids: F.embedding(ids, self.embedding)
