"""Learning-rate schedules whose length the trainer supplies."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class CosineWithWarmup(LambdaLR):
    """Linear warm-up over a fraction of the run, then a cosine down to a fraction of the peak.

    Args:
        optimizer: The optimiser.
        total_steps: Optimiser steps of the whole run; the module passes what the trainer estimates.
        warmup: Fraction of the steps spent rising (0.04 in the published DFlash recipe).
        final: Learning rate at the end, as a fraction of the peak.
    """

    def __init__(self, optimizer: Optimizer, total_steps: int, warmup: float = 0.04, final: float = 0.0) -> None:
        if not 0 <= warmup < 1:
            raise ValueError(f"warmup is a fraction of the run in [0, 1), got {warmup}")
        if not 0 <= final <= 1:
            raise ValueError(f"final is a fraction of the peak learning rate in [0, 1], got {final}")
        if not 0 < total_steps < math.inf:
            raise ValueError(
                f"a cosine needs a finite run, got {total_steps} steps: set trainer.max_steps or max_epochs"
            )
        rising = math.ceil(warmup * total_steps)

        def factor(step: int) -> float:
            if step < rising:
                return (step + 1) / rising
            done = min(1.0, (step - rising) / max(1, total_steps - rising))
            return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))

        super().__init__(optimizer, factor)
