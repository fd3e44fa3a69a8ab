"""Contract of a corrector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specdraft.correctors.confidence import Confidence, ConfidenceHead
from specdraft.types import Head, Proposal, TargetSpec

SlotLoss = Callable[[Tensor, Tensor], Tensor]
CandidateLogits = Callable[[Tensor], Tensor]


@dataclass
class CorrectionBatch:
    """Blocks to correct with the ground truth as predecessors; M blocks of K slots that predict.

    Attributes:
        hidden: ``[M, K, H]`` drafter output, with gradients where the drafter is trained.
        labels: ``[M, K]`` int64 target ids; meaningless behind the last supervised slot.
        rows: ``[M, K]`` int64, row of each label in the head; -1 outside the draft vocabulary.
        previous: ``[M, K]`` int64 target ids of the ground-truth predecessors: the anchor, then the labels.
        counted: ``[M, K]`` bool m, slots that count in the loss; their labels lie inside the draft vocabulary.
        weights: ``[M, K]`` float32 ``m w`` of the objective, detached.
        head: Frozen head over the draft vocabulary.
        loss: The objective's prediction loss: logits ``[n, D]`` and flat slots ``[n]`` of ``[M K]`` to losses ``[n]``,
            differentiable in the logits.
        chunk_size: Slots whose logits may exist at a time.
        overlap: Probability that a draft is accepted, ``sum_v min(p, q)``: logits ``[n, D]`` and flat slots ``[n]`` to
            ``[n]``. None where the target's distribution was not extracted.
        target_logits: The target's logits ``[M, K, C]`` of candidates ``[M, K, C]`` (target ids), without gradients;
            None as for ``overlap``.
    """

    hidden: Tensor
    labels: Tensor
    rows: Tensor
    previous: Tensor
    counted: Tensor
    weights: Tensor
    head: Head
    loss: SlotLoss
    chunk_size: int
    overlap: SlotLoss | None = None
    target_logits: CandidateLogits | None = None


@dataclass
class Correction:
    """Teacher-forced outcome of a corrector.

    Attributes:
        numerator: ``sum m w l``, float32 scalar; its denominator is ``sum m w`` of the batch.
        predicted_ids: ``[M, K]`` int64 target ids that the corrector chooses given the ground-truth predecessors;
            -1 where not counted.
        diagnostics: Further scalars to log, detached; means over the counted slots of this batch.
        confidence: Confidences of the counted slots, where the corrector has any.
    """

    numerator: Tensor
    predicted_ids: Tensor
    diagnostics: dict[str, Tensor]
    confidence: Confidence | None = None


class Corrector(nn.Module, ABC):
    """Turns a drafter's hidden states and logits into the tokens that are proposed.

    Training (:meth:`forward`) and decoding (:meth:`propose`) share their scores: at temperature 0 the token that is
    proposed behind a correct prefix is the one that :meth:`forward` predicts there.

    Args:
        spec: The target that the drafter and the corrector are made for.

    Attributes:
        candidates: Tokens per slot that the corrector chooses from; the diagnostics of validation count them.
    """

    candidates: int = 16

    def __init__(self, spec: TargetSpec) -> None:
        super().__init__()
        self.spec = spec
        self._embed: Callable[[Tensor], Tensor] | None = None

    def bind(self, embed: Callable[[Tensor], Tensor]) -> None:
        """Take the target's frozen input embedding, ``[...]`` int64 to ``[..., H]``; it is no part of the corrector."""
        self._embed = embed

    def embed(self, ids: Tensor) -> Tensor:
        """Frozen input embedding of target ids, in the corrector's dtype.

        Raises:
            RuntimeError: If :meth:`bind` was not called.
        """
        if self._embed is None:
            raise RuntimeError(f"{type(self).__name__} reads token embeddings: call bind(target.embed) first")
        embedded = self._embed(ids)
        return embedded.to(next(self.parameters()).dtype)

    @property
    def needs_target(self) -> bool:
        """Whether training reads the target's distribution, so that its last hidden states are extracted."""
        return False

    @property
    def confidence_head(self) -> ConfidenceHead | None:
        """The head that rates the drafts; validation calibrates it. None: proposals carry no confidences."""
        return None

    @property
    def has_loss(self) -> bool:
        """Whether there is anything to train: :meth:`forward` is defined."""
        return type(self).forward is not Corrector.forward

    def loss_weights(self, progress: float) -> tuple[float, float]:
        """Weights of the drafter's own loss and of the corrector's in joint training.

        On a frozen drafter only the corrector's loss is left, with weight 1.

        Args:
            progress: Fraction of the training that is done, 0..1; validation always uses 1.
        """
        return 1.0, 1.0

    def forward(self, batch: CorrectionBatch) -> Correction | None:
        """Teacher-forced loss and predictions; None when there is nothing to correct or to train."""
        return None

    @abstractmethod
    def propose(
        self,
        hidden: Tensor,
        base_logits: Tensor,
        anchor: Tensor,
        temperature: float,
        generator: torch.Generator | None,
        head: Head,
    ) -> Proposal:
        """Choose the drafts of one round.

        Args:
            hidden: ``[N, K, H]`` hidden states of the slots that predict.
            base_logits: ``[N, K, D]`` logits over the draft vocabulary.
            anchor: ``[N]`` int64 target id of the last verified token.
            temperature: Sampling temperature of the request, 0 for greedy.
            generator: Source of randomness for sampled walks.
            head: The frozen head that made the logits; maps its rows to target ids.

        Returns:
            Tokens ``[N, K]`` as target ids; ``q`` is None for a deterministic draft.
        """

    def extra_state_for_checkpoint(self) -> dict[str, Any]:
        """Options that decide how the weights must be used, builtins only."""
        return {}


def check_positive(**values: float) -> None:
    """Refuse sizes below 1.

    Raises:
        ValueError: Naming the option and its value.
    """
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def check_candidates(candidates: int, spec: TargetSpec) -> None:
    """Refuse fewer than 2 candidates, or more than there are tokens.

    Raises:
        ValueError: Naming the number of candidates and of tokens.
    """
    if not 2 <= candidates <= spec.draft_vocab_size:
        raise ValueError(
            f"candidates {candidates} must be in 2..{spec.draft_vocab_size}, the rows of the draft vocabulary of "
            f"{spec.name!r}"
        )


def whole_vocabulary(probs: Tensor, rows: Tensor | None, head: Head, vocab_size: int) -> Tensor:
    """Spread draft probabilities over the target's vocabulary, 0 elsewhere.

    Args:
        probs: ``[N, K, C]``.
        rows: ``[N, K, C]`` int64 rows of the head that they belong to; None for all D rows in order.
        head: The head of the rows.
        vocab_size: V.

    Returns:
        ``[N, K, V]``.
    """
    if rows is None and head.token_ids is None:
        return probs
    whole = probs.new_zeros(*probs.shape[:-1], vocab_size)
    if rows is None:
        whole[..., head.token_ids] = probs
        return whole
    return whole.scatter_(-1, head.to_ids(rows), probs)


def draw(probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """One index ``[...]`` per distribution ``[..., C]``."""
    return torch.multinomial(probs.flatten(0, -2), 1, generator=generator).view(probs.shape[:-1])
