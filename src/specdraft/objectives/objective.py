"""The objective: inclusion x weighting x prediction."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from specdraft.objectives.anchors import all_anchors, sample_anchors
from specdraft.objectives.block_terms import BlockTerm
from specdraft.objectives.frozen_head import frozen_head_loss
from specdraft.objectives.inclusion import FixedHorizon, Inclusion
from specdraft.objectives.prediction import CrossEntropy, Prediction
from specdraft.objectives.weighting import ExponentialDecay, Scores, Weighting
from specdraft.types import BlockBatch, DraftBatch, Head


@dataclass
class ObjectiveOutput:
    """Loss of a batch in parts, so that it can be normalised over ranks and accumulated batches.

    Attributes:
        numerator: ``sum m w l``, float32 with gradients; a scalar, or ``[T]`` for a sum of T terms.
        denominator: ``sum m w``, float32 without gradients, of the numerator's shape.
        predicted_ids: ``[N, A, B]`` int64 target ids, -1 where not supervised.
        correct: ``[N, A, B]`` bool.
        label_prob: ``[N, A, B]`` float32, 0 where not supervised.
        weights: ``[N, A, B]`` float32 ``m w``.
        supervised: Scalar int64, number of supervised slots, the dropped ones included.
        dropped: Scalar int64, supervised slots whose label lies outside the draft vocabulary.
    """

    numerator: Tensor
    denominator: Tensor
    predicted_ids: Tensor
    correct: Tensor
    label_prob: Tensor
    weights: Tensor
    supervised: Tensor
    dropped: Tensor

    @property
    def loss(self) -> Tensor:
        """Loss normalised over this batch alone."""
        return self.normalised(self.denominator)

    def normalised(self, denominator: Tensor) -> Tensor:
        """Scalar loss for a denominator that was summed over ranks or batches; 0 where nothing is supervised."""
        return (self.numerator / torch.where(denominator > 0, denominator, 1)).sum()

    @property
    def weight_profile(self) -> Tensor:
        """Mean weight at each slot of a block over the blocks that supervise it, ``[B]``; 0 where none does."""
        count = (self.predicted_ids >= 0).sum((0, 1))
        return self.weights.sum((0, 1)) / count.clamp(min=1)

    def training_values(self, first_slot: int) -> dict[str, Tensor]:
        """What to log of a training step, scalars by name; ``weight_at/k`` is the profile at the k-th draft."""
        return {f"train/weight_at/{k}": weight for k, weight in enumerate(self.weight_profile[first_slot:], 1)}


class Objective:
    """Weighted mean of a prediction loss over the supervised slots, ``sum m w l / sum m w``.

    The factorisation is DScout's; with the defaults it is the loss of DFlash (arXiv 2602.06036). Terms over whole
    blocks join the numerator: ``(sum m w l + sum_blocks term) / sum m w``.

    Args:
        inclusion: How blocks are laid out; None is :class:`FixedHorizon`.
        weighting: How much each slot counts; None is :class:`ExponentialDecay`.
        prediction: Loss of one slot; None is :class:`CrossEntropy`.
        num_anchors: Most anchors drawn from one document in each step.
        chunk_size: Positions whose logits exist at a time; None fits it to vocabulary and device.
        terms: Terms over whole blocks, such as :class:`AcceptedLength`; None for none.
        anchor_budget: Most anchors of one batch and rank, drawn from all documents together; None for no limit. It
            bounds what a step costs where batches hold many short documents.

    Raises:
        ValueError: If ``num_anchors``, ``chunk_size`` or ``anchor_budget`` is below 1.
    """

    def __init__(
        self,
        inclusion: Inclusion | None = None,
        weighting: Weighting | None = None,
        prediction: Prediction | None = None,
        num_anchors: int = 64,
        chunk_size: int | None = None,
        terms: list[BlockTerm] | None = None,
        anchor_budget: int | None = None,
    ) -> None:
        if num_anchors < 1 or (chunk_size is not None and chunk_size < 1):
            raise ValueError(f"num_anchors and chunk_size must be at least 1, got {num_anchors} and {chunk_size}")
        if anchor_budget is not None and anchor_budget < 1:
            raise ValueError(f"anchor_budget must be at least 1 or null, got {anchor_budget}")
        self.inclusion = inclusion or FixedHorizon()
        self.weighting = weighting or ExponentialDecay()
        self.prediction = prediction or CrossEntropy()
        self.num_anchors = num_anchors
        self.chunk_size = chunk_size
        self.terms = tuple(terms or ())
        self.anchor_budget = anchor_budget

    @property
    def needs_last_hidden(self) -> bool:
        """Whether the target's hidden states after its final norm are needed."""
        predictions = (self.prediction, *(term.prediction for term in self.terms))
        return self.weighting.needs_target or any(prediction.needs_target for prediction in predictions)

    def set_progress(self, progress: float) -> None:
        """Tell the inclusion which part of the training is done, 0..1, for a curriculum."""
        self.inclusion.set_progress(progress)

    def check_trains(self, block_size: int, first_slot: int, train_drafter: bool) -> None:
        """Refuse what would leave slots of the drafter untrained, before the first step.

        Args:
            block_size: Slots B of a full block.
            first_slot: First slot that predicts a token, 0 or 1.
            train_drafter: Whether the drafter is trained, or a corrector alone.

        Raises:
            ValueError: If a horizon does not fit the block, or the largest never reaches its end.
        """
        self.set_progress(1.0)  # where a curriculum ends
        largest = max(self.inclusion.trained_horizons(block_size, first_slot))
        if train_drafter and largest < block_size:
            raise ValueError(
                f"the largest horizon {largest} is below the drafter's block size {block_size}, whose later slots "
                f"would never be trained; set block_size to {largest}, or add {block_size} to the horizons"
            )
        if self.terms and not train_drafter:
            names = ", ".join(type(term).__name__ for term in self.terms)
            warnings.warn(f"{names}: terms train the drafter, which is frozen here; they have no effect", stacklevel=2)

    def blocks(
        self,
        batch: DraftBatch,
        *,
        block_size: int,
        first_slot: int,
        mask_token_id: int,
        generator: torch.Generator | None,
    ) -> BlockBatch:
        """Draw anchors and cut the blocks of a training step, see :meth:`Inclusion.build`."""
        anchors, valid = sample_anchors(batch, self.num_anchors, generator=generator, budget=self.anchor_budget)
        return self.inclusion.build(
            batch,
            anchors,
            valid,
            block_size=block_size,
            first_slot=first_slot,
            mask_token_id=mask_token_id,
            generator=generator,
        )

    def validation_blocks(
        self, batch: DraftBatch, *, block_size: int, first_slot: int, mask_token_id: int, limit: int
    ) -> BlockBatch:
        """Cut blocks as decoding sees them: full horizon, nothing revealed, evenly spread anchors.

        They do not depend on the inclusion, so that validation compares objectives on the same slots.

        Args:
            batch: Tokenised conversations.
            block_size: Slots B of a block.
            first_slot: First slot that predicts a token, 0 or 1.
            mask_token_id: Token of undrafted slots.
            limit: Most anchors of one document.
        """
        anchors, valid = all_anchors(batch, limit)
        return FixedHorizon().build(
            batch,
            anchors,
            valid,
            block_size=block_size,
            first_slot=first_slot,
            mask_token_id=mask_token_id,
            generator=None,
        )

    def __call__(
        self,
        hidden: Tensor,
        blocks: BlockBatch,
        head: Head,
        batch_last_hidden: Tensor | None = None,
        target_head: Head | None = None,
    ) -> ObjectiveOutput:
        """Compute the loss of the supervised slots.

        A label outside the draft vocabulary is left out of the loss but is still a miss in ``correct``.

        Args:
            hidden: ``[N, A, B, H]`` drafter output.
            blocks: The blocks that it was computed for.
            head: Frozen head over the draft vocabulary.
            batch_last_hidden: ``[N, L, H]`` target hidden states after its final norm, see :attr:`needs_last_hidden`.
            target_head: The target's whole head; None if ``head`` is it.

        Raises:
            ValueError: If the target's hidden states are needed and missing.
        """
        mask = blocks.supervised
        index = mask.flatten().nonzero()[:, 0]  # once: on a GPU it waits for the device
        labels = blocks.labels.flatten()[index]
        rows = head.to_rows(labels)
        inside = rows >= 0
        further = [term.prediction for term in self.terms if not _same(term.prediction, self.prediction)]
        result = frozen_head_loss(
            hidden.flatten(0, 2).index_select(0, index),
            head,
            rows.clamp(min=0),
            self.prediction,
            self._target_hidden(blocks, index, batch_last_hidden),
            target_head,
            self.chunk_size,
            further,
        )
        predicted = head.to_ids(result.predicted)
        scores = Scores(
            label_prob=_spread(result.label_prob * inside, mask),
            correct=_spread((predicted == labels) & inside, mask),
            overlap=None if result.overlap is None else _spread(result.overlap, mask),
        )
        counted = _spread(inside, mask)
        with torch.no_grad():
            weights = self.weighting.weights(blocks, scores).float().masked_fill(~counted, 0)
        losses = _spread(result.loss, mask)
        numerator, denominator = self.reduce(losses, counted, weights)
        rest = iter(result.further)
        for term in self.terms:
            own = losses if _same(term.prediction, self.prediction) else _spread(next(rest), mask)
            value = term.values(own, mask, counted).sum()
            # the first of several numerators takes it
            numerator = numerator + value if numerator.ndim == 0 else torch.cat([numerator[:1] + value, numerator[1:]])
        return ObjectiveOutput(
            numerator=numerator,
            denominator=denominator.detach(),
            predicted_ids=_spread(predicted + 1, mask) - 1,
            correct=scores.correct,
            label_prob=scores.label_prob,
            weights=weights,
            supervised=mask.sum(),
            dropped=(~inside).sum(),
        )

    def reduce(self, losses: Tensor, counted: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Bring the loss of every slot down to numerator and denominator.

        A subclass may add terms over whole blocks here: ``losses`` is differentiable, and with cross-entropy
        ``exp(-losses)`` is the probability of each label. Several terms with their own denominators are stacked.

        Args:
            losses: ``[N, A, B]`` float32, 0 where not counted.
            counted: ``[N, A, B]`` bool m.
            weights: ``[N, A, B]`` float32 ``m w``, detached.
        """
        return (weights * losses.masked_fill(~counted, 0)).sum(), weights.sum()

    def _target_hidden(self, blocks: BlockBatch, index: Tensor, last_hidden: Tensor | None) -> Tensor | None:
        """Target hidden states ``[n, H]`` that predict the labels: those of the token before each."""
        if not self.needs_last_hidden:
            return None
        if last_hidden is None:
            raise ValueError("this objective needs the target's last hidden states; extract or cache them as well")
        rows, length = last_hidden.shape[:2]
        start = torch.arange(rows, device=index.device)[:, None, None] * length
        before = (start + blocks.label_positions - 1).flatten()[index]
        return last_hidden.flatten(0, 1).index_select(0, before)


def _same(one: Prediction, other: Prediction) -> bool:
    """Whether two predictions are the same function, so that it is computed once."""
    return type(one) is type(other) and vars(one) == vars(other)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Put ``[n]`` values back into ``[N, A, B]``, 0 elsewhere; differentiable."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
