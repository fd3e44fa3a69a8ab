"""Contract of a corrector."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from specdraft.types import Head, Proposal, TargetSpec


class Corrector(nn.Module, ABC):
    """Turns a drafter's hidden states and logits into the tokens that are proposed.

    Args:
        spec: The target that the drafter and the corrector are made for.
    """

    def __init__(self, spec: TargetSpec) -> None:
        super().__init__()
        self.spec = spec

    @abstractmethod
    def propose(
        self,
        hidden: Tensor,
        base_logits: Tensor,
        anchor: Tensor,
        temperature: float,
        generator: torch.Generator | None,
        head: Head,
    ) -> Proposal:
        """Choose the drafts of one round.

        Args:
            hidden: ``[N, K, H]`` hidden states of the slots that predict.
            base_logits: ``[N, K, D]`` logits over the draft vocabulary.
            anchor: ``[N]`` int64 target id of the last verified token.
            temperature: Sampling temperature of the request, 0 for greedy.
            generator: Source of randomness for sampled walks.
            head: The frozen head that made the logits; maps its rows to target ids.

        Returns:
            Tokens ``[N, K]`` as target ids; ``q`` is None for a deterministic draft.
        """
