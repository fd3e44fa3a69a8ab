"""Between objective and corrector: the blocks of a batch as a corrector sees them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specdraft.correctors import Confidence, CorrectionBatch, Corrector
from specdraft.objectives import Objective, ObjectiveOutput, SlotLoss, TotalVariation, default_chunk_size
from specdraft.types import BlockBatch, Head


@dataclass
class Corrected:
    """Drafter's and corrector's loss together.

    Attributes:
        numerator: Scalar with gradients; its denominator is that of the objective's (first) term.
        denominator: Scalar without gradients.
        predicted_ids: ``[N, A, B]`` int64 tokens chosen given the ground truth before them, -1 where not supervised.
        base: The objective's output for the uncorrected drafter.
        parts: Scalars to log, means over this batch.
        denominators: What each part is a mean over, so that parts of batches can be pooled; scalars by name.
        confidence: Confidences of the corrected slots, where the corrector has any.
    """

    numerator: Tensor
    denominator: Tensor
    predicted_ids: Tensor
    base: ObjectiveOutput
    parts: dict[str, Tensor]
    denominators: dict[str, Tensor]
    confidence: Confidence | None = None

    @property
    def loss(self) -> Tensor:
        """Loss normalised over this batch alone."""
        return self.numerator / torch.where(self.denominator > 0, self.denominator, 1)

    def choices(self, blocks: BlockBatch) -> dict[str, Tensor]:
        """What was predicted, for metrics outside of the module.

        ``anchors`` ``[N, A]``, and each ``[N, A, B]``: ``predicted`` (with the corrector) and ``base_predicted``
        (without), -1 where not supervised, ``labels``, all int64, and ``supervised``, bool.
        """
        return {
            "anchors": blocks.anchors,
            "predicted": self.predicted_ids,
            "base_predicted": self.base.predicted_ids,
            "labels": blocks.labels,
            "supervised": blocks.supervised,
        }


@dataclass
class TeacherForced:
    """What :func:`correct` needs of a batch besides the drafter's output.

    Attributes:
        blocks: The blocks.
        first_slot: First slot that predicts a token.
        draft_head: Frozen head over the draft vocabulary.
        target_head: The target's whole head.
        last_hidden: ``[N, L, H]`` target hidden states after the final norm, if the objective reads them.
        train_drafter: Whether the drafter is trained; if not, only the corrector's loss counts.
        progress: Fraction of the training that is done.
    """

    blocks: BlockBatch
    first_slot: int
    draft_head: Head
    target_head: Head
    last_hidden: Tensor | None
    train_drafter: bool
    progress: float


def correct(objective: Objective, corrector: Corrector, hidden: Tensor, given: TeacherForced) -> Corrected:
    """Loss of drafter and corrector over the objective's slots and weights.

    The weights are those of the uncorrected drafter, so that both losses have one denominator.

    Args:
        objective: Inclusion, weighting and prediction.
        corrector: Corrects the drafter's slots.
        hidden: ``[N, A, B, H]`` drafter output.
        given: The rest of the batch.
    """
    base_weight, weight = corrector.loss_weights(given.progress) if given.train_drafter else (0.0, 1.0)
    heads = (given.draft_head, given.last_hidden, given.target_head)
    # a loss of weight 0 is still computed: its scores make the weights, but it needs no gradient
    out = objective(hidden if base_weight else hidden.detach(), given.blocks, *heads)
    numerator, denominator = as_scalars(out)
    base_loss = numerator.detach() / torch.where(denominator > 0, denominator, 1)
    correction = None
    if corrector.has_loss:
        batch, kept = correction_batch(objective, hidden, out, given)
        correction = corrector(batch)
    if correction is None:
        parts, over = {"base_loss": base_loss}, {"base_loss": denominator}
        return Corrected(numerator, denominator, out.predicted_ids, out, parts, over)
    total = batch.weights.sum()
    # equal to the objective's denominator unless that one has terms of its own
    share = correction.numerator / torch.where(total > 0, total, 1)
    numerator = base_weight * numerator + weight * share * denominator
    predicted = torch.full_like(out.predicted_ids, -1)
    slots = predicted[..., given.first_slot :].flatten(0, 1).index_copy(0, kept, correction.predicted_ids)
    predicted[..., given.first_slot :] = slots.view_as(predicted[..., given.first_slot :])
    parts = {"base_loss": base_loss, "corrector_loss": share.detach(), **correction.diagnostics}
    over = dict.fromkeys(correction.diagnostics, batch.counted.sum())
    over |= {"base_loss": denominator, "corrector_loss": total}
    return Corrected(numerator, denominator, predicted, out, parts, over, correction.confidence)


def correction_batch(
    objective: Objective, hidden: Tensor, out: ObjectiveOutput, given: TeacherForced
) -> tuple[CorrectionBatch, Tensor]:
    """Blocks that have a slot to correct, and their places ``[M]`` among the ``N A`` blocks."""
    blocks, head = given.blocks, given.draft_head
    drafts = slice(given.first_slot, None)
    rows = head.to_rows(blocks.labels[..., drafts])
    counted = blocks.supervised[..., drafts] & (rows >= 0)
    kept = counted.any(-1).flatten().nonzero()[:, 0]
    if not len(kept):
        kept = kept.new_zeros(1)  # without anything to learn every parameter still takes part, as DDP wants

    def take(values: Tensor) -> Tensor:
        return values.flatten(0, 1).index_select(0, kept)

    labels, own_rows = take(blocks.labels[..., drafts]), take(rows)
    previous = torch.cat([take(blocks.tokens[..., :1]), labels[:, :-1]], 1)
    before = overlap = target_logits = None
    chunk_size = objective.chunk_size or default_chunk_size(head.weight.shape[0], hidden.device)
    if given.last_hidden is not None:
        count, length = given.last_hidden.shape[:2]
        start = torch.arange(count, device=kept.device)[:, None, None] * length
        where = take(start + blocks.label_positions[..., drafts] - 1).flatten().clamp(min=0)
        before = given.last_hidden.flatten(0, 1).index_select(0, where)
        distance = SlotLoss(TotalVariation(), own_rows.flatten(), head, before, given.target_head)
        overlap = lambda logits, index: 1 - distance(logits, index)  # noqa: E731
        target_logits = partial(candidate_logits, before, given.target_head, take(counted), chunk_size)
    loss = SlotLoss(objective.prediction, own_rows.flatten(), head, before, given.target_head)
    batch = CorrectionBatch(
        hidden=take(hidden[..., drafts, :]),
        labels=labels,
        rows=own_rows,
        previous=previous,
        counted=take(counted),
        weights=take(out.weights[..., drafts]),
        head=head,
        loss=loss,
        chunk_size=chunk_size,
        overlap=overlap,
        target_logits=target_logits,
    )
    return batch, kept


@torch.no_grad()
def candidate_logits(before: Tensor, head: Head, counted: Tensor, chunk_size: int, ids: Tensor) -> Tensor:
    """The target's logits of some candidates, 0 where not counted; whole rows exist for one chunk at a time.

    Args:
        before: ``[M K, H]`` target hidden states that predict the slots.
        head: The target's whole head.
        counted: ``[M, K]`` bool.
        chunk_size: Slots whose logits exist at a time.
        ids: ``[M, K, C]`` int64 target ids.

    Returns:
        ``[M, K, C]`` float32.
    """
    index = counted.flatten().nonzero()[:, 0]
    own = ids.flatten(0, 1)
    out = torch.zeros_like(own, dtype=torch.float32)
    for part in index.split(chunk_size):
        out[part] = head(before[part]).float().gather(-1, own[part])
    return out.view(ids.shape)


def label_ranks(batch_hidden: Tensor, blocks: BlockBatch, head: Head, chunk_size: int | None) -> Tensor:
    """Place of every supervised label among the drafter's logits, 0 for the most probable.

    Args:
        batch_hidden: ``[N, A, B, H]`` drafter output.
        blocks: The blocks.
        head: Frozen head over the draft vocabulary.
        chunk_size: Slots whose logits exist at a time; None fits it to vocabulary and device.

    Returns:
        ``[N, A, B]`` int64; the size of the draft vocabulary for labels outside of it, and where not supervised.
    """
    index = blocks.supervised.flatten().nonzero()[:, 0]
    rows = head.to_rows(blocks.labels.flatten()[index])
    hidden = batch_hidden.flatten(0, 2).index_select(0, index)
    count = head.weight.shape[0]
    chunk_size = chunk_size or default_chunk_size(count, hidden.device)
    ranks = torch.empty_like(rows)
    places = torch.arange(count, device=rows.device)
    for start in range(0, len(index), chunk_size):
        part = slice(start, start + chunk_size)
        logits, own = head(hidden[part]), rows[part, None].clamp(min=0)
        mine = logits.gather(1, own)
        # of equal logits, frequent in bfloat16, the first row comes first: a label does not share another's rank
        ranks[part] = ((logits > mine) | ((logits == mine) & (places < own))).sum(-1)
    ranks = torch.where(rows < 0, count, ranks)
    return torch.full_like(blocks.labels, count).flatten().index_copy(0, index, ranks).view_as(blocks.labels)


def as_scalars(out: ObjectiveOutput) -> tuple[Tensor, Tensor]:
    """Numerator and denominator as scalars; further terms are brought to the first one's denominator."""
    if out.numerator.ndim == 0:
        return out.numerator, out.denominator
    first = out.denominator[0]
    return (out.numerator * (first / torch.where(out.denominator > 0, out.denominator, 1))).sum(), first
