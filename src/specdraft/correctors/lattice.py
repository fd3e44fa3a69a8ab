"""Correctors that choose among the most probable tokens of every slot: scores of all transitions, then one walk."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from specdraft.correctors.base import (
    Correction,
    CorrectionBatch,
    Corrector,
    check_candidates,
    draw,
    whole_vocabulary,
)
from specdraft.correctors.candidate_loss import CandidateCrossEntropy, CandidateLoss
from specdraft.types import Head, Proposal, TargetSpec


@dataclass
class Lattice:
    """The C most probable tokens of every slot, best first; M rows of K slots.

    Attributes:
        rows: ``[M, K, C]`` int64 rows of the head.
        ids: ``[M, K, C]`` int64 target ids.
        logits: ``[M, K, C]`` float32 ``U``.
        log_z: ``[M, K]`` float32, log-normaliser of U over the whole draft vocabulary; 0 where nobody reads it.
        top: ``[M, K]`` float32, largest logit.
    """

    rows: Tensor
    ids: Tensor
    logits: Tensor
    log_z: Tensor
    top: Tensor

    def at(self, slots: int | slice) -> Lattice:
        """The candidates of some slots."""
        return Lattice(*(values[:, slots] for values in (self.rows, self.ids, self.logits, self.log_z, self.top)))


class LatticeCorrector(Corrector):
    """Scores ``S_t(a, b)`` of candidate b at slot t given its predecessor a, for all slots and pairs in one pass.

    The walk is prefix-first greedy: the best candidate at the first slot, then the best given the one chosen before
    it. It costs no launch per slot: one argmax gives the best successor of *every* candidate, and pointer doubling
    composes these tables in ``ceil(log2 K)`` gathers. A sampled walk draws the successor of every candidate instead,
    of which only those on the path matter.

    Training: a loss over the candidates given the ground-truth predecessor, in one pass. A label that missed the
    candidates takes the last place, for the loss only; validation counts it as a miss.

    Args:
        spec: The target.
        candidates: Candidates C per slot.
        sample: At ``temperature > 0`` sample the walk from ``softmax(S / temperature)`` over the candidates, which is
            its ``q``; false proposes the greedy walk as a point mass.
        weight: Weight of the corrector's loss beside the drafter's own in joint training.
        loss: Loss of one slot; None is :class:`CandidateCrossEntropy`.

    Attributes:
        reads_log_z: Whether decoding needs the log-probabilities of the candidates, and not only their logits.
    """

    reads_log_z: bool = False

    def __init__(
        self, spec: TargetSpec, candidates: int, sample: bool, weight: float, loss: CandidateLoss | None
    ) -> None:
        check_candidates(candidates, spec)
        if not weight > 0:
            raise ValueError(f"weight must be positive, got {weight}")
        super().__init__(spec)
        self.candidates, self.sample, self.weight = candidates, sample, weight
        self.candidate_loss = loss or CandidateCrossEntropy()

    @abstractmethod
    def transitions(self, hidden: Tensor, lattice: Lattice, anchor: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of all transitions.

        Args:
            hidden: ``[N, K, H]``.
            lattice: The candidates.
            anchor: ``[N]`` int64 target ids.

        Returns:
            ``[N, C]`` scores of the first slot, and ``[N, K - 1, C, C]``: from the candidate (third axis) of one slot
            to that of the next (fourth).
        """

    @abstractmethod
    def given(self, hidden: Tensor, lattice: Lattice, previous: Tensor, previous_logp: Tensor) -> Tensor:
        """Scores ``[M, K, C]`` of the candidates given one predecessor each.

        Args:
            hidden: ``[M, K, H]``.
            lattice: The candidates.
            previous: ``[M, K]`` int64 target ids, the anchor first.
            previous_logp: ``[M, K]`` float32 log-probability of each predecessor at its own slot; 0 for the anchor.
        """

    def greedy_walk(self, hidden: Tensor, lattice: Lattice, anchor: Tensor) -> Tensor | None:
        """The greedy path ``[N, K]`` where there is a cheaper way than all transitions, else None."""
        return None

    @property
    @override
    def needs_target(self) -> bool:
        return self.candidate_loss.needs_target

    @override
    def loss_weights(self, progress: float) -> tuple[float, float]:
        return 1.0, self.weight

    @override
    def forward(self, batch: CorrectionBatch) -> Correction:
        lattice, gold_logits = teacher_lattice(batch, self.candidates)
        inside = batch.rows >= 0
        is_gold = lattice.rows == batch.rows[..., None]
        missed = batch.counted & ~is_gold.any(-1)
        # a predecessor outside the draft vocabulary cannot be met in decoding; it passes for the last candidate
        worst = (lattice.logits[..., -1] - lattice.log_z).detach()
        logp = torch.where(inside, gold_logits - lattice.log_z, worst)
        previous_logp = F.pad(logp[:, :-1], (1, 0))
        lattice = _with_gold(lattice, batch, missed, gold_logits)
        scores = self.given(batch.hidden, lattice, batch.previous, previous_logp).float()
        place = torch.where(missed, scores.shape[-1] - 1, is_gold.int().argmax(-1))
        target_logits = None
        if self.needs_target and batch.target_logits is not None:
            target_logits = batch.target_logits(lattice.ids).flatten(0, 1)
        losses = self.candidate_loss(scores.flatten(0, 1), place.flatten(), target_logits).view_as(batch.weights)
        numerator = (losses.masked_fill(~batch.counted, 0) * batch.weights).sum()
        # what was put into the last place for the loss cannot be chosen
        free = scores.detach().clone()
        free[..., -1] = free[..., -1].masked_fill(missed, float("-inf"))
        chosen = lattice.ids.gather(-1, free.argmax(-1, keepdim=True))[..., 0]
        share = missed.sum() / batch.counted.sum().clamp(min=1)
        return Correction(numerator, chosen.masked_fill(~batch.counted, -1), {"label_missed": share})

    @override
    def propose(
        self,
        hidden: Tensor,
        base_logits: Tensor,
        anchor: Tensor,
        temperature: float,
        generator: torch.Generator | None,
        head: Head,
    ) -> Proposal:
        lattice = most_probable(base_logits, self.candidates, head, self.reads_log_z)
        greedy = not self.sample or temperature == 0
        path = self.greedy_walk(hidden, lattice, anchor) if greedy else None
        if path is None:
            first, scores = self.transitions(hidden, lattice, anchor)
        if greedy:
            path = follow(first.argmax(-1), scores.argmax(-1)) if path is None else path
            return Proposal(lattice.ids.gather(-1, path[..., None])[..., 0])
        first = torch.softmax(first.float() / temperature, -1)
        laws = torch.softmax(scores.float() / temperature, -1)
        path = follow(draw(first, generator), draw(laws, generator))
        taken = path[:, :-1, None, None].expand(-1, -1, 1, laws.shape[-1])
        q = torch.cat([first[:, None], laws.gather(2, taken)[:, :, 0]], 1)
        tokens = lattice.ids.gather(-1, path[..., None])[..., 0]
        return Proposal(tokens, whole_vocabulary(q, lattice.rows, head, self.spec.vocab_size))


def follow(start: Tensor, successors: Tensor) -> Tensor:
    """Walk along tables of successors by pointer doubling.

    Args:
        start: ``[N]`` int64 candidate of the first slot.
        successors: ``[N, K - 1, C]`` int64, for every candidate the one that follows it at the next slot.

    Returns:
        ``[N, K]`` int64 candidates of the path.
    """
    # table t maps a candidate `span` slots earlier to one at slot t; the first table is constant
    width = successors.shape[-1]
    table = torch.cat([start[:, None, None].expand(-1, 1, width), successors], 1)
    span, slots = 1, table.shape[1]
    while span < slots:
        table = torch.cat([table[:, :span], table[:, span:].gather(-1, table[:, :-span])], 1)
        span *= 2
    return table[..., 0]


def most_probable(logits: Tensor, count: int, head: Head, normalise: bool = True) -> Lattice:
    """The ``count`` best rows of logits ``[N, K, D]``, with or without the log-normaliser."""
    values, rows = logits.topk(count, dim=-1)
    values = values.float()
    top = values[..., 0]
    return Lattice(rows, head.to_ids(rows), values, log_normaliser(logits) if normalise else torch.zeros_like(top), top)


def log_normaliser(logits: Tensor) -> Tensor:
    """``logsumexp`` over the last axis in float32; on a CPU slot by slot, which stays in its cache (5x faster)."""
    if logits.device.type != "cpu":
        return logits.float().logsumexp(-1)
    slots = logits.flatten(0, -2)
    best = torch.stack([slot.float().softmax(-1).amax() for slot in slots])  # at least 1 / D
    return slots.amax(-1).float().sub(best.log()).view(logits.shape[:-1])


def teacher_lattice(batch: CorrectionBatch, count: int) -> tuple[Lattice, Tensor]:
    """Candidates of every slot, and the logit of its label ``[M, K]``; logits exist for one chunk at a time."""
    flat = batch.hidden.flatten(0, 1)
    gold = batch.rows.flatten().clamp(min=0)

    def best(hidden: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logits = batch.head(hidden).float()
        values, rows = logits.topk(count, dim=-1)
        return values, rows, logits.logsumexp(-1), logits.gather(-1, own[:, None])[:, 0]

    parts = []
    for start in range(0, len(flat), batch.chunk_size):
        own = slice(start, start + batch.chunk_size)
        if flat.requires_grad and torch.is_grad_enabled():
            parts.append(checkpoint(best, flat[own], gold[own], use_reentrant=False))
        else:
            parts.append(best(flat[own], gold[own]))
    values, rows, log_z, gold_logits = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    shape = batch.rows.shape
    rows, values = rows.view(*shape, count), values.view(*shape, count)
    lattice = Lattice(rows, batch.head.to_ids(rows), values, log_z.view(shape), values[..., 0])
    return lattice, gold_logits.view(shape)


def _with_gold(lattice: Lattice, batch: CorrectionBatch, missed: Tensor, gold_logits: Tensor) -> Lattice:
    """Put labels that missed the candidates into the last place."""

    def swap(values: Tensor, gold: Tensor) -> Tensor:
        last = torch.where(missed, gold, values[..., -1])
        return torch.cat([values[..., :-1], last[..., None]], -1)

    return Lattice(
        swap(lattice.rows, batch.rows),
        swap(lattice.ids, batch.labels),
        swap(lattice.logits, gold_logits),
        lattice.log_z,
        lattice.top,
    )
