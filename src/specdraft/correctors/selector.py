"""Low-rank bilinear selection among candidates (DFlash 2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from specdraft.correctors.base import check_positive
from specdraft.correctors.candidate_loss import CandidateLoss
from specdraft.correctors.lattice import Lattice, LatticeCorrector
from specdraft.types import TargetSpec


class SelectorCorrector(LatticeCorrector):
    """DFlash 2's candidate selector (inco.ai, 18 August 2026).

    ``S_t(a, b) = U_t(b) + <A[a] * (P h_t), B[b]>`` with ``P`` ``[r, H]``, a codebook ``A`` ``[V, r]`` of predecessors
    and ``B`` ``[D, r]`` of successors. ``A`` is drawn with deviation 0.02 and ``B`` starts at zero, so that training
    starts from the uncorrected drafter (A and P learn from the second step on). The anchor precedes the first slot.

    The public training code and checkpoints have codebooks, ``r (V + D + H)`` parameters. The published +2.0M of
    Qwen3-4B are those of ``codebooks: false``, where ``A[a] = W_A E(a)`` and ``B[b] = W_B E(b)`` read the target's
    frozen embeddings: ``3 r H``, that is 1,966,080.

    Args:
        spec: The target.
        candidates: Candidates C per slot.
        rank: Width r.
        codebooks: Learn a vector per token; false projects the frozen embeddings.
        sample: At ``temperature > 0`` sample the walk, as published; false proposes the greedy walk.
        weight: Weight of the corrector's loss beside the drafter's own in joint training.
        loss: Loss of one slot's candidates, such as :class:`CandidateMargin`; null is cross-entropy.
    """

    def __init__(
        self,
        spec: TargetSpec,
        candidates: int = 16,
        rank: int = 256,
        codebooks: bool = True,
        sample: bool = True,
        weight: float = 1.0,
        loss: CandidateLoss | None = None,
    ) -> None:
        check_positive(rank=rank)
        super().__init__(spec, candidates, sample, weight, loss)
        self.rank, self.codebooks = rank, codebooks
        self.hidden_projection = nn.Linear(spec.hidden_size, rank, bias=False)
        rows = (spec.vocab_size, spec.draft_vocab_size) if codebooks else (rank, rank)
        width = rank if codebooks else spec.hidden_size
        self.predecessor = nn.Parameter(torch.empty(rows[0], width))
        self.successor = nn.Parameter(torch.zeros(rows[1], width))
        nn.init.normal_(self.predecessor, std=0.02)

    def _predecessors(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.predecessor) if self.codebooks else self.embed(ids) @ self.predecessor.T

    def _successors(self, lattice: Lattice) -> Tensor:
        if self.codebooks:
            return F.embedding(lattice.rows, self.successor)
        return self.embed(lattice.ids) @ self.successor.T

    @override
    def transitions(self, hidden: Tensor, lattice: Lattice, anchor: Tensor) -> tuple[Tensor, Tensor]:
        gate = self.hidden_projection(hidden.to(self.predecessor.dtype))
        successors = gate[:, :, None] * self._successors(lattice)
        first = lattice.logits[:, 0] + (successors[:, 0] @ self._predecessors(anchor)[..., None])[..., 0]
        before = self._predecessors(lattice.ids[:, :-1])
        return first, lattice.logits[:, 1:, None] + before @ successors[:, 1:].transpose(-1, -2)

    @override
    def given(self, hidden: Tensor, lattice: Lattice, previous: Tensor, previous_logp: Tensor) -> Tensor:
        gate = self.hidden_projection(hidden.to(self.predecessor.dtype)) * self._predecessors(previous)
        return lattice.logits + (self._successors(lattice) @ gate[..., None])[..., 0]

    @override
    def extra_state_for_checkpoint(self) -> dict[str, Any]:
        return {"rank": self.rank, "codebooks": self.codebooks}
