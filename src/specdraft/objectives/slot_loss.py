"""The objective's prediction loss for logits that something else has computed."""

from __future__ import annotations

from torch import Tensor

from specdraft.objectives.frozen_head import _target_chunk
from specdraft.objectives.prediction import Prediction
from specdraft.types import Head


class SlotLoss:
    """Prediction loss of n slots, a chunk at a time, differentiable in the logits.

    Args:
        prediction: Loss of one slot.
        rows: ``[n]`` int64, row of each label in the head; negative ones are never asked for.
        head: Frozen head over the draft vocabulary.
        target_hidden: ``[n, H]`` target hidden states that predict the labels; None if the loss reads no target.
        target_head: The target's whole head.

    Raises:
        ValueError: If the loss reads the target and its hidden states are missing.
    """

    def __init__(
        self, prediction: Prediction, rows: Tensor, head: Head, target_hidden: Tensor | None, target_head: Head
    ) -> None:
        if prediction.needs_target and target_hidden is None:
            raise ValueError(f"{type(prediction).__name__} needs the target's last hidden states; extract them as well")
        self.prediction, self.rows, self.head = prediction, rows, head
        self.target_hidden, self.target_head = target_hidden, target_head

    def __call__(self, logits: Tensor, index: Tensor) -> Tensor:
        """Losses ``[c]`` of logits ``[c, D]`` for the slots ``index`` ``[c]``."""
        target = None
        if self.prediction.needs_target:
            assert self.target_hidden is not None
            target = _target_chunk(self.target_hidden[index], self.head, self.target_head)
        return self.prediction.forward(logits, self.rows[index], target)
