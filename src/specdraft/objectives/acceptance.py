"""Weights from the acceptance of the slots before: dynamic, detached, per block."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.objectives.weighting import Scores, Weighting
from specdraft.types import BlockBatch


class AcceptanceWeighted(Weighting):
    """Weight a slot by how likely the drafts before it are accepted (DScout's acceptance-weighted loss).

    With ``s_j = (1 - smoothing) score_j + smoothing`` and ``P_j`` the product of s over the slots before j (and j
    itself if ``inclusive``):

    - ``form: prefix``: ``w_j = P_j``, the chance that slot j matters at all. DScout's equation is not public; this is
      the literal reading of its "prefix-dependent acceptance score".
    - ``form: suffix_sum``: ``w_j = sum_{m >= j} P_m``, which adds the value of what follows. With ``inclusive`` it is
      D-PACE (arXiv 2605.18810, eq. for w_j), the gradient of the expected accepted length.

    Slots that are not supervised count 1 in products and 0 in sums, so that a revealed prefix starts anew. Without
    smoothing the weights behind the first miss vanish, and a hard prefix collapses (VAT, arXiv 2608.30135: accepted
    length 3.11 against 5.54 unweighted), so ``smoothing: 0`` has to be asked for twice.

    Args:
        score: ``probability`` of the label under the draft, ``argmax`` (1 if the most probable token is the label),
            or ``overlap``, ``sum_v min(p, q)``, which needs the target's last hidden states.
        form: ``prefix`` or ``suffix_sum``.
        inclusive: Whether the slot's own score is part of its product.
        smoothing: Share of 1 that is mixed into every score, in 0..1; D-PACE's alpha, stable from 0.3 to 0.7.
        allow_zero_smoothing: Accept ``smoothing: 0``.

    Raises:
        ValueError: If an option is unknown or out of range.
    """

    def __init__(
        self,
        score: Literal["probability", "argmax", "overlap"] = "probability",
        form: Literal["prefix", "suffix_sum"] = "prefix",
        inclusive: bool = False,
        smoothing: float = 0.5,
        allow_zero_smoothing: bool = False,
    ) -> None:
        if score not in ("probability", "argmax", "overlap"):
            raise ValueError(f"score {score!r} is unknown; use probability, argmax or overlap")
        if form not in ("prefix", "suffix_sum"):
            raise ValueError(f"form {form!r} is unknown; use prefix or suffix_sum")
        if not 0 <= smoothing <= 1:
            raise ValueError(f"smoothing must lie in [0, 1], got {smoothing}")
        if smoothing == 0 and not allow_zero_smoothing:
            raise ValueError(
                "smoothing 0 gives slots behind a miss no weight, which collapses with hard scores; use 0.3 to 0.7, "
                "or set allow_zero_smoothing: true"
            )
        self.score = score
        self.form = form
        self.inclusive = inclusive
        self.smoothing = smoothing

    @property
    @override
    def needs_target(self) -> bool:
        return self.score == "overlap"

    @override
    def weights(self, blocks: BlockBatch, scores: Scores) -> Tensor:
        smooth = (1 - self.smoothing) * self._scores(scores) + self.smoothing
        reach = prefix_products(smooth, blocks.supervised, inclusive=self.inclusive)
        return suffix_sums(reach, blocks.supervised) if self.form == "suffix_sum" else reach

    def _scores(self, scores: Scores) -> Tensor:
        if self.score == "argmax":
            return scores.correct.float()
        if self.score == "probability":
            return scores.label_prob.float()
        if scores.overlap is None:
            raise ValueError("score overlap needs the target's last hidden states; extract them with the features")
        return scores.overlap.float()


def prefix_products(scores: Tensor, supervised: Tensor, *, inclusive: bool) -> Tensor:
    """Products of ``[N, A, B]`` scores over the supervised slots up to each slot, itself included or not."""
    scores = scores.masked_fill(~supervised, 1)
    if not inclusive:  # shifted, not divided: a score may be 0
        scores = torch.nn.functional.pad(scores[..., :-1], (1, 0), value=1)
    return scores.cumprod(-1)


def suffix_sums(values: Tensor, supervised: Tensor) -> Tensor:
    """Sums of ``[N, A, B]`` values over the supervised slots from each slot on, itself included."""
    return values.masked_fill(~supervised, 0).flip(-1).cumsum(-1).flip(-1)
