"""Floating-point operations of the steps of a running training."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from specdraft.estimate.step import StepShape, step_cost
from specdraft.module import DraftingModule

LENGTH, ANCHORS = 64, 8


@dataclass(frozen=True)
class StepWork:
    """Operations of a step, linear in what it holds; found by three steps on tensors without data.

    Attributes:
        per_token: Of a context token, the target's forward included where it runs.
        per_anchor: Of a block with all its slots.
        per_pair: Of a block and a context token, on average over anchors that are spread evenly.
    """

    per_token: float
    per_anchor: float
    per_pair: float

    @classmethod
    def of(cls, module: DraftingModule, online: bool) -> StepWork:
        """Work of a module that is being trained, which is left as it is.

        Args:
            module: The module.
            online: Whether the target runs in every step.
        """

        def flops(length: int, anchors: int) -> float:
            # plain functions, because Lightning copies the arguments and the command line's factories cannot be copied
            twin = DraftingModule(
                module.target_config,
                lambda spec: module.make_drafter(spec),
                lambda spec: module.make_corrector(spec),
                copy.copy(module.objective),
                lambda parameters: module.make_optimizer(parameters),
                draft_vocab_size=module.draft_vocab_size,
                train_drafter=module.train_drafter,
            )
            shape = StepShape(1, length, anchors, torch.float32, None, "cpu")
            return step_cost(twin, module.target.spec, shape).flops

        once, longer, more = flops(LENGTH, ANCHORS), flops(2 * LENGTH, ANCHORS), flops(LENGTH, 2 * ANCHORS)
        pairs = longer + more - 3 * once + 0.0
        target = 0.0
        if online:
            spec = module.target.spec
            layers = spec.num_layers if module.needs_last_hidden else max(spec.taps) + 1
            heads = spec.num_attention_heads * spec.head_dim
            layer = 2 * heads + 2 * spec.num_key_value_heads * spec.head_dim
            target = 2.0 * layers * spec.hidden_size * (layer + 3 * spec.intermediate_size)
        return cls(
            (longer - once - pairs) / LENGTH + target, (more - once - pairs) / ANCHORS, pairs / (LENGTH * ANCHORS)
        )

    def flops(self, tokens: float, anchors: float, length: float) -> float:
        """Operations of a step.

        Args:
            tokens: Context tokens of all rows.
            anchors: Blocks of all rows.
            length: Tokens of a row.
        """
        return tokens * self.per_token + anchors * (self.per_anchor + length * self.per_pair)
