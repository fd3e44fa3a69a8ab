"""Everything that an estimate says, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from specdraft.data import CachedFeatures, ChatDataModule, Packed
from specdraft.data.feature_formats import FORMATS
from specdraft.estimate.step import StepCost, StepShape, step_cost
from specdraft.estimate.target import target_shape
from specdraft.module import DraftingModule
from specdraft.targets.shapes import TargetShape

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class TrainerFacts:
    """What matters of the trainer's options.

    Attributes:
        precision: As Lightning names it.
        ranks: Processes.
        accumulate: Batches per optimiser step and rank.
        max_epochs: Epochs; below 0 for no limit.
        max_steps: Optimiser steps; below 0 for no limit.
        strategy: Name of the strategy.
    """

    precision: str = "32-true"
    ranks: int = 1
    accumulate: int = 1
    max_epochs: int = -1
    max_steps: int = -1
    strategy: str = "auto"


@dataclass
class Estimate:
    """Memory in bytes and work of one optimiser step of one rank.

    Attributes:
        target: The frozen target.
        shape: Size of a batch.
        cost: What the step takes beside the target.
        memory: Bytes by part at the peak; their sum is the estimate.
        target_flops: Operations of the target's forward per batch; 0 with cached features.
        cache_bytes_per_token: Bytes that stored features take per token.
        trainer: The trainer's options.
        rows: Conversations of an epoch, or None.
    """

    target: TargetShape
    shape: StepShape
    cost: StepCost
    memory: dict[str, int] = field(default_factory=dict)
    target_flops: float = 0.0
    cache_bytes_per_token: int = 0
    trainer: TrainerFacts = field(default_factory=TrainerFacts)
    rows: int | None = None

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.memory.values())

    @property
    def flops(self) -> float:
        """Operations of one optimiser step of one rank."""
        return (self.cost.flops + self.target_flops) * self.trainer.accumulate

    def steps_per_epoch(self) -> int | None:
        """Optimiser steps of an epoch, if the number of rows is known."""
        rows = self.shape.rows * self.trainer.ranks * self.trainer.accumulate
        return None if self.rows is None else -(-self.rows // rows)


def plan(
    module: DraftingModule, data: ChatDataModule, trainer: TrainerFacts, *, device: str, rows: int | None = None
) -> Estimate:
    """Estimate a run.

    Args:
        module: The run's module; it is built on tensors without data and of no further use.
        data: Its data module; nothing is read.
        trainer: The trainer's options.
        device: ``cuda`` or ``cpu``.
        rows: Conversations of an epoch, or None.

    Raises:
        FileNotFoundError: If the target's configuration is not found.
        ValueError: If the size of a batch, or with ``rows`` their number, depends on the data.
    """
    if rows is not None:
        _refuse_uncounted(data)
    target = target_shape(module.target_config)
    spec = target.spec
    dtype = module.target_config.dtype
    weights = DTYPES["bfloat16" if (dtype == "auto" and device == "cuda") or dtype == "bfloat16" else "float32"]
    cached = isinstance(data.features, CachedFeatures)
    stored = FORMATS[data.features.dtype if isinstance(data.features, CachedFeatures) else _name(weights)]
    autocast = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(str(trainer.precision))
    rows_of_batch, length, anchors = _largest_batch(module, data, min(data.max_length, spec.max_position_embeddings))
    # whatever the type on disk, a step sees the features in the type that the target computed in
    shape = StepShape(rows_of_batch, length, anchors, weights, autocast, device, trainer.accumulate > 1)
    fused = bool(module.make_optimizer([torch.nn.Parameter(torch.zeros(2, 2))]).defaults.get("fused"))
    cost = step_cost(module, spec, shape)
    last = module.needs_last_hidden
    layers = spec.num_layers if last else max(spec.taps) + 1
    out = Estimate(target, shape, cost, trainer=trainer, rows=rows)
    columns = dict(stored.columns(len(spec.taps), spec.hidden_size))
    if last:
        columns["last_hidden"] = (stored.hidden_dtype, spec.hidden_size)
    out.cache_bytes_per_token = sum(kind.itemsize * width for kind, width in columns.values())
    if not cached:
        tokens, width = shape.rows * length, spec.num_attention_heads * spec.head_dim
        # causal attention: half of the score matrix, two products
        out.target_flops = layers * tokens * (2.0 * target.layer_parameters + 2.0 * width * length)
    out.memory = {f"target ({_name(weights)})": target.parameters * torch.finfo(weights).bits // 8, **cost.peak}
    _spread_over_ranks(out, trainer)
    if device == "cuda" and not fused:
        # the optimizer's step comes when the activations are gone: it needs the gradients and a copy of them
        step = sum(v for k, v in out.memory.items() if "weights" in k or k.startswith(("target", "optimizer")))
        extra = step + 2 * 4 * cost.trainable - out.total
        if extra > 0:
            out.memory["optimizer step"] = extra
    return out


def _largest_batch(module: DraftingModule, data: ChatDataModule, max_length: int) -> tuple[int, int, int]:
    """Rows, tokens and anchors of a row in the largest batch."""
    rows, length = data.batching.largest(data.batch_size, max_length)
    budget = module.objective.anchor_budget
    if budget is not None:
        return rows, length, min(-(-budget // rows), length)
    if isinstance(data.batching, Packed):
        raise ValueError("how many anchors a packed row holds depends on the data; set the objective's anchor_budget")
    return rows, length, min(module.objective.num_anchors, length)


def _refuse_uncounted(data: ChatDataModule) -> None:
    """Refuse to count steps where a batch holds as many conversations as their lengths allow."""
    batching = data.batching
    if isinstance(batching, Packed) or getattr(batching, "tokens_per_batch", None) is not None:
        raise ValueError(
            f"how many steps an epoch takes depends on the lengths of the conversations with {type(batching).__name__}"
            f"{'' if isinstance(batching, Packed) else ' and tokens_per_batch'}; leave out rows (--rows)"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _spread_over_ranks(out: Estimate, trainer: TrainerFacts) -> None:
    """What more than one rank changes: buckets of gradients under DDP, shares under FSDP2."""
    trained = 4 * out.cost.trainable
    if trainer.ranks == 1:
        return
    if trainer.strategy.startswith("fsdp"):
        for name in ("drafter weights", "corrector weights", "optimizer state", "gradients"):
            if name in out.memory:
                out.memory[name] = -(-out.memory[name] // trainer.ranks)
        out.memory["gathered weights"] = trained
    else:
        out.memory["gradient buckets"] = trained


def option(value: Any, default: int) -> int:
    """A number of devices or batches; ``auto`` and lists are counted as far as they can be."""
    if isinstance(value, list):
        return len(value)
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and value > 0 else default
