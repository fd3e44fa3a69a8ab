"""No correction: the drafter's own choice per slot."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.correctors.base import Corrector
from specdraft.types import Head, Proposal, TargetSpec


class NoCorrector(Corrector):
    """Propose the most probable token of every slot.

    The draft is a point mass at any temperature: drawing every slot on its own gives blocks whose tokens do not fit
    together and accepts less, so it is an option only.

    Args:
        spec: The target that the drafter is made for.
        sample: Draw each slot independently at ``temperature > 0``, verified against its own ``q``.
    """

    def __init__(self, spec: TargetSpec, sample: bool = False) -> None:
        super().__init__(spec)
        self.sample = sample

    @override
    def propose(
        self,
        hidden: Tensor,
        base_logits: Tensor,
        anchor: Tensor,
        temperature: float,
        generator: torch.Generator | None,
        head: Head,
    ) -> Proposal:
        if not self.sample or temperature == 0:
            return Proposal(head.to_ids(base_logits.argmax(-1)))
        probs = torch.softmax(base_logits.float() / temperature, -1)
        rows = torch.multinomial(probs.flatten(0, 1), 1, generator=generator).view(probs.shape[:2])
        if head.token_ids is None:
            return Proposal(rows, probs)
        q = probs.new_zeros(*probs.shape[:2], self.spec.vocab_size)
        q[..., head.token_ids] = probs
        return Proposal(head.to_ids(rows), q)
