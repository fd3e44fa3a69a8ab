"""Callbacks whose order or options decide what is measured."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import WeightAveraging


def check_order(callbacks: Sequence[Callback], decoding: Callback) -> None:
    """Refuse averaged weights that are swapped out again before they are decoded, and averages of what is no weight.

    Args:
        callbacks: All callbacks of the run, in their order.
        decoding: The one of them that decodes at the end of validation.

    Raises:
        ValueError: If weights are averaged by a callback that stands before it, or buffers along with them.
    """
    for callback in callbacks:
        if isinstance(callback, WeightAveraging) and callback._use_buffers:
            raise ValueError(
                f"{type(callback).__name__} would average the buffers too, among them the token ids of the draft "
                "vocabulary, which then name other tokens: set its use_buffers: false"
            )
    for callback in callbacks:
        if callback is decoding:
            return
        if isinstance(callback, WeightAveraging):
            raise ValueError(
                f"{type(callback).__name__} stands before {type(decoding).__name__}, so that the raw weights would be "
                f"decoded, but the averaged ones saved: list {type(decoding).__name__} first in trainer.callbacks"
            )
