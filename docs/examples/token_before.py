"""A corrector that adds a bias for the token before, read from the target's embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from specdraft.correctors import FullVocabularyCorrector
from specdraft.correctors.full_vocabulary import Step
from specdraft.types import TargetSpec


class TokenBefore(FullVocabularyCorrector):
    """Logits + ``W2 tanh(W1 E(previous token))``.

    The base class holds ``W2``, which starts at zero, and does the loss and the walk; two methods give the code.

    Args:
        spec: The target.
        rank: Width of the code.
    """

    def __init__(self, spec: TargetSpec, rank: int = 64) -> None:
        super().__init__(spec, rank, sample=False)
        self.input = nn.Linear(spec.hidden_size, rank)

    @override
    def codes(self, hidden: Tensor, previous: Tensor) -> Tensor:
        return torch.tanh(self.input(self.embed(previous)))  # [M, K] tokens to [M, K, r]

    @override
    def walk(self, hidden: Tensor) -> Step:
        return lambda k, last: torch.tanh(self.input(self.embed(last)))  # [N] tokens to [N, r]

    @override
    def extra_state_for_checkpoint(self) -> dict[str, Any]:
        return {"rank": self.input.out_features}
