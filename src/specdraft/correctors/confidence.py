"""How sure a corrector is of its drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

# draft positions that have a temperature of their own; later ones share the last
MAX_POSITIONS = 64


@dataclass
class Confidence:
    """Confidences of n slots and what became of them, without gradients.

    Attributes:
        logits: ``[n]`` float32, before calibration.
        acceptance: ``[n]`` float32 in [0, 1], probability that the slot's draft is accepted given its predecessors.
        positions: ``[n]`` int64, draft position counted from 0.
    """

    logits: Tensor
    acceptance: Tensor
    positions: Tensor


class ConfidenceHead(nn.Module):
    """DSpark's confidence head (arXiv 2607.05147): ``c_k = sigmoid(w [h_k ; e_k] + b)``.

    ``h_k`` ``[H]`` is the drafter's hidden state of slot k and ``e_k`` ``[r]`` the embedding of its predecessor, so
    that ``c_k`` is known before draft k is drawn. It learns by binary cross-entropy the probability that the draft is
    accepted, and starts at 1/2.

    It reads *detached* states: the published code lets its gradient into the drafter, where it was blamed for loss
    spikes (Automodel PR 3875), and its loss is no loss of the drafter's.

    Calibrated confidences are ``sigmoid(logit / T_k)`` with a temperature per draft position, see
    :func:`specdraft.metrics.fit_temperatures`; these lie in the checkpoint.

    Args:
        hidden_size: H.
        rank: r.
    """

    temperatures: Tensor

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.output = nn.Linear(hidden_size + rank, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("temperatures", torch.ones(MAX_POSITIONS))

    @override
    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Logits ``[...]`` float32 from ``[..., H]`` and ``[..., r]``."""
        states = torch.cat([hidden.detach(), embedded.detach()], -1)
        logits: Tensor = self.output(states)[..., 0].float()
        return logits

    def calibrated(self, logits: Tensor) -> Tensor:
        """Probabilities ``[N, K]`` of logits ``[N, K]`` whose second axis is the draft position."""
        return torch.sigmoid(logits / self.temperatures_of(logits.shape[1]))

    def temperatures_of(self, count: int) -> Tensor:
        """Temperatures ``[count]`` float32 of the first draft positions; those behind the last stored one share it."""
        places = torch.arange(count, device=self.temperatures.device).clamp(max=MAX_POSITIONS - 1)
        return self.temperatures[places].float()

    def calibrate(self, temperatures: Tensor) -> None:
        """Take the temperatures ``[K]`` of the draft positions; later positions take the last one.

        Raises:
            ValueError: If one is not positive.
        """
        if not bool((temperatures > 0).all()):
            raise ValueError(f"temperatures must be positive, got {temperatures.tolist()}")
        places = torch.arange(MAX_POSITIONS, device=temperatures.device).clamp(max=len(temperatures) - 1)
        self.temperatures.copy_(temperatures[places])


def confidence_loss(logits: Tensor, acceptance: Tensor) -> Tensor:
    """Binary cross-entropy ``[n]`` with the probability of acceptance ``[n]`` as its soft label."""
    return F.binary_cross_entropy_with_logits(logits, acceptance, reduction="none")
