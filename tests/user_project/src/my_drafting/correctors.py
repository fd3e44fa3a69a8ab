"""A corrector on the bare contract: nothing but :class:`specdraft.correctors.Corrector` is inherited."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from specdraft.correctors import Correction, CorrectionBatch, Corrector
from specdraft.types import Head, Proposal, TargetSpec


class RepeatBias(Corrector):
    """One learned number, added to the logit of the token before: drafts repeat less, or more.

    Args:
        spec: The target that the drafter is made for.
        start: The number at the start.
    """

    def __init__(self, spec: TargetSpec, start: float = 0.0) -> None:
        super().__init__(spec)
        self.bias = nn.Parameter(torch.tensor(start))

    def _corrected(self, logits: Tensor, rows: Tensor) -> Tensor:
        """``[n, D]`` logits and ``[n]`` rows of the tokens before, -1 outside the draft vocabulary."""
        share = (rows >= 0).to(logits.dtype)[:, None] * self.bias.to(logits.dtype)
        return logits.scatter_add(1, rows.clamp(min=0)[:, None], share)

    @override
    def forward(self, batch: CorrectionBatch) -> Correction:
        index = batch.counted.flatten().nonzero()[:, 0]
        hidden = batch.hidden.flatten(0, 1).index_select(0, index)
        before = batch.head.to_rows(batch.previous.flatten()[index])
        logits = self._corrected(batch.head(hidden), before)
        numerator = (batch.loss(logits, index) * batch.weights.flatten()[index]).sum()
        chosen = batch.head.to_ids(logits.detach().argmax(-1))
        ids = torch.full_like(batch.labels, -1).flatten().index_copy(0, index, chosen)
        return Correction(numerator, ids.view_as(batch.labels), {"repeat_bias": self.bias.detach()})

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
        tokens, last = [], anchor
        for k in range(base_logits.shape[1]):
            last = head.to_ids(self._corrected(base_logits[:, k], head.to_rows(last)).argmax(-1))
            tokens.append(last)
        return Proposal(torch.stack(tokens, 1))  # a function of the context: no q, verified as a point mass

    @override
    def extra_state_for_checkpoint(self) -> dict[str, Any]:
        return {}
