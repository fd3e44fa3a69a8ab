"""A training step run on tensors without data: what it allocates and multiplies."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from specdraft.drafters.block_attention import BlockAttention
from specdraft.estimate.attention_shapes import AttentionShapes
from specdraft.estimate.live_memory import LiveMemory
from specdraft.estimate.target import ShapeTarget
from specdraft.module import DraftingModule
from specdraft.objectives import default_chunk_size
from specdraft.types import BlockBatch, DraftBatch, TargetSpec

FROZEN = "frozen target"


@dataclass(frozen=True)
class StepShape:
    """Size of one batch of one rank.

    Attributes:
        rows: Rows N.
        length: Tokens L of a row.
        anchors: Anchors A of a row.
        feature_dtype: Type of the features.
        autocast: Type that matrix products are cast to, or None.
        device: ``cuda`` or ``cpu``, which decides attention and chunks.
        accumulated: Whether gradients of an earlier batch are there already.
    """

    rows: int
    length: int
    anchors: int
    feature_dtype: torch.dtype
    autocast: torch.dtype | None
    device: str
    accumulated: bool = False


@dataclass(frozen=True)
class StepCost:
    """What a step takes beside the frozen target.

    Attributes:
        peak: Bytes by part at the peak of forward and backward, weights and optimizer state included.
        drafter_parameters: Parameters of the drafter.
        corrector_parameters: Parameters of the corrector.
        trainable: Parameters that are trained.
        state_bytes: Bytes of optimizer state.
        flops: Floating-point operations of forward and backward.
    """

    peak: dict[str, int]
    drafter_parameters: int
    corrector_parameters: int
    trainable: int
    state_bytes: int
    flops: float

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.peak.values())


def step_cost(module: DraftingModule, spec: TargetSpec, shape: StepShape) -> StepCost:
    """Run a step of a module that has not been built yet, on tensors without data.

    Every anchor is taken to fit and every slot to be supervised, so that the result is an upper bound for the batch.
    What an allocator loses, and what kernels use inside, is not in it.

    Args:
        module: Module with its factories; it is built here, without data, and is of no further use.
        spec: The target.
        shape: Size of the batch.
    """
    bytes_per_parameter = optimizer_bytes(module)
    rows = module.draft_vocab_size or spec.vocab_size
    with FakeTensorMode(allow_non_fake_inputs=True):
        target = ShapeTarget.make(spec, shape.feature_dtype)
        module.target = target  # type: ignore[assignment]
        module._draft_head = target.head if rows == spec.vocab_size else _reduced(target, rows)
        module.drafter = drafter = module.make_drafter(spec)
        module.corrector = corrector = module._new_corrector()
        corrector.bind(target.embed)
        drafter.requires_grad_(module.train_drafter)
        module.train()
        blocks_of = shape.rows * shape.anchors
        live = LiveMemory(spec.vocab_size, rows, {blocks_of * drafter.block_size: blocks_of * drafter.num_drafts})
        _stand_in(drafter, live, fused=shape.device == "cuda")
        if module.objective.chunk_size is None:
            module.objective.chunk_size = default_chunk_size(rows, torch.device(shape.device))
        trainable = [p for p in module.parameters() if p.requires_grad]
        state = [torch.empty(bytes_per_parameter * p.numel(), dtype=torch.uint8) for p in trainable]
        batch, blocks = _batch(module, spec, shape)
        with live:
            live.hold(FROZEN, target.embedding, target.head.weight, module.draft_head.weight)
            live.hold("drafter weights", *drafter.parameters())
            live.hold("corrector weights", *corrector.parameters())
            live.hold("optimizer state", *state)
            live.hold("features", *(x for x in (batch.features, batch.last_hidden) if x is not None))
            _watch(drafter, live, "block activations")
            _watch(corrector, live, "corrector")
            for parameter in trainable:
                if shape.accumulated:
                    parameter.grad = torch.empty_like(parameter)
                    live.hold("gradients", parameter.grad)
                parameter.register_post_accumulate_grad_hook(lambda p: live.hold("gradients", p.grad))
            autocast = torch.autocast("cpu", shape.autocast) if shape.autocast else nullcontext()
            with autocast:
                numerator = _forward(module, batch, blocks, live)
            with live.booked("backward"):
                numerator.backward()
    return StepCost(
        {name: size for name, size in live.at_peak.items() if size and name != FROZEN},
        sum(p.numel() for p in drafter.parameters()),
        sum(p.numel() for p in corrector.parameters()),
        sum(p.numel() for p in trainable),
        sum(x.numel() for x in state),
        live.flops,
    )


def optimizer_bytes(module: DraftingModule) -> int:
    """Bytes of state that the module's optimizer keeps per parameter, found by a step over a small matrix."""
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = module.make_optimizer([weight])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    state = [x for x in optimizer.state[weight].values() if isinstance(x, Tensor)]
    return -(-sum(x.numel() * x.element_size() for x in state if x.numel() > 1) // weight.numel())


def _forward(module: DraftingModule, batch: DraftBatch, blocks: BlockBatch, live: LiveMemory) -> Tensor:
    with live.booked("loss"):
        out, _ = module._corrected(batch, blocks)
    return out.numerator


def _reduced(target: ShapeTarget, rows: int) -> Any:
    head = target.head
    smaller = type(head)(head.weight[:rows].clone(), pack=False)
    return smaller


def _stand_in(drafter: nn.Module, live: LiveMemory, fused: bool) -> None:
    for parent in list(drafter.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BlockAttention) and not isinstance(parent, BlockAttention):
                setattr(parent, name, AttentionShapes(live, fused))


def _watch(part: nn.Module, live: LiveMemory, label: str) -> None:
    """Book what the forward of a part allocates under its label."""
    open_labels: list[str] = []

    def enter(*_: Any) -> None:
        open_labels.append(live.label)
        live.label = label

    def leave(*_: Any) -> None:
        live.label = open_labels.pop()

    part.register_forward_pre_hook(enter)
    part.register_forward_hook(leave)


def _batch(module: DraftingModule, spec: TargetSpec, shape: StepShape) -> tuple[DraftBatch, BlockBatch]:
    size = module.drafter.block_size
    tokens = torch.zeros(shape.rows, shape.length, dtype=torch.int64)
    here = torch.zeros(shape.rows, shape.anchors, size, dtype=torch.int64)
    wide = torch.empty(shape.rows, shape.length, spec.feature_size, dtype=shape.feature_dtype)
    last = torch.empty(shape.rows, shape.length, spec.hidden_size, dtype=shape.feature_dtype)
    batch = DraftBatch(
        tokens, tokens > 0, tokens, tokens, wide, last if module.needs_last_hidden else None, [""] * shape.rows
    )
    anchors = here[..., 0].clone()
    blocks = BlockBatch(anchors, anchors > 0, here, here > 0, here.clone(), here > 0, here.clone())
    return batch, blocks
