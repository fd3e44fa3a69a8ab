"""Sequential correction by the whole drafted prefix (Domino)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from specdraft.correctors.base import check_positive
from specdraft.correctors.full_vocabulary import FullVocabularyCorrector, Step
from specdraft.types import TargetSpec


class DominoCorrector(FullVocabularyCorrector):
    """Domino's causal head (arXiv 2605.29707): a GRU over the drafted prefix.

    ``g_k = GRU(E(x_{-1}), ..., E(x_{k-1}))`` ``[G]`` over frozen target embeddings of the anchor ``x_{-1}`` and the
    drafts before slot k (counted from 0), and the law of slot k is ``softmax(U_k + W2 SiLU(W1 [h_k ; g_k]))``. The
    first slot keeps its own logits. GRU and linear layers have no bias; ``W1`` ``[r, H + G]``; ``W2`` ``[D, r]`` starts
    at zero. With G = 1024, r = 256 and a vocabulary of 151,936 these are 55.9M parameters at H = 4096 (published: 56M).

    Training is one GRU call over the ground truth. The loss moves from the drafter to the head,
    ``lambda L_base + (1 - lambda) L_final`` with ``lambda = start (1 - progress / ratio)`` down to 0. Decoding carries
    the GRU's state: one step per slot, the prefix is never run again.

    Args:
        spec: The target.
        hidden: Width G of the GRU.
        rank: Width r.
        sample: At ``temperature > 0`` draw every draft from its corrected law; false proposes a point mass.
        lambda_start: Weight of the drafter's own loss at the beginning.
        lambda_ratio: Fraction of the training after which it is 0.

    Raises:
        ValueError: If an option is out of range.
    """

    def __init__(
        self,
        spec: TargetSpec,
        hidden: int = 1024,
        rank: int = 256,
        sample: bool = True,
        lambda_start: float = 1.0,
        lambda_ratio: float = 1.0,
    ) -> None:
        check_positive(hidden=hidden, rank=rank)
        if not 0 <= lambda_start <= 1 or not lambda_ratio > 0:
            raise ValueError(
                f"lambda_start must be in [0, 1] and lambda_ratio positive, got {lambda_start} and {lambda_ratio}"
            )
        super().__init__(spec, rank, sample)
        self.width, self.rank = hidden, rank
        self.lambda_start, self.lambda_ratio = lambda_start, lambda_ratio
        self.prefix_gru = nn.GRU(spec.hidden_size, hidden, bias=False, batch_first=True)
        self.project = nn.Linear(spec.hidden_size + hidden, rank, bias=False)

    @override
    def loss_weights(self, progress: float) -> tuple[float, float]:
        base = self.lambda_start * min(1.0, max(0.0, 1 - progress / self.lambda_ratio))
        return base, 1 - base

    @override
    def codes(self, hidden: Tensor, previous: Tensor) -> Tensor:
        states = self.prefix_gru(self.embed(previous))[0]
        codes = F.silu(self.project(torch.cat([hidden, states], -1)))
        return torch.cat([torch.zeros_like(codes[:, :1]), codes[:, 1:]], 1)

    @override
    def walk(self, hidden: Tensor) -> Step:
        size = self.spec.hidden_size
        from_hidden = F.linear(hidden, self.project.weight[:, :size])
        from_state = self.project.weight[:, size:]
        weights: tuple[Tensor, Tensor] = (self.prefix_gru.weight_ih_l0, self.prefix_gru.weight_hh_l0)  # type: ignore[assignment]
        state = hidden.new_zeros(len(hidden), self.width)

        def step(k: int, last: Tensor) -> Tensor:
            nonlocal state
            state = torch.gru_cell(self.embed(last), state, *weights)
            code = F.silu(from_hidden[:, k] + F.linear(state, from_state))
            return torch.zeros_like(code) if k == 0 else code

        return step

    @override
    def extra_state_for_checkpoint(self) -> dict[str, Any]:
        return {"hidden": self.width, "rank": self.rank}
