"""Correctors that add a low-rank bias over the whole draft vocabulary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from typing_extensions import override

from specdraft.correctors.base import Correction, CorrectionBatch, Corrector, draw, whole_vocabulary
from specdraft.correctors.confidence import Confidence, confidence_loss
from specdraft.types import Head, Proposal, TargetSpec

# one slot of the walk: predecessors [N] (target ids) to the code [N, r]; keeps its own state
Step = Callable[[int, Tensor], Tensor]


class FullVocabularyCorrector(Corrector):
    """Corrected logits ``U_k + W2 z_k`` with a code ``z_k`` ``[r]`` of the predecessors, decoded slot by slot.

    A subclass computes the codes, in one pass with the ground truth (:meth:`codes`) and step by step
    (:meth:`walk`). ``W2`` ``[D, r]`` starts at zero, so that training starts from the uncorrected drafter.

    Args:
        spec: The target.
        rank: Width r of the code.
        sample: At ``temperature > 0`` draw every draft from its corrected law; false proposes the most probable
            tokens as a point mass.
    """

    output: nn.Linear

    def __init__(self, spec: TargetSpec, rank: int, sample: bool) -> None:
        super().__init__(spec)
        self.sample = sample
        self.output = nn.Linear(rank, spec.draft_vocab_size, bias=False)
        nn.init.zeros_(self.output.weight)

    @abstractmethod
    def codes(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Codes ``[M, K, r]`` from hidden states ``[M, K, H]`` and ground-truth predecessors ``[M, K]``."""

    @abstractmethod
    def walk(self, hidden: Tensor) -> Step:
        """Begin a walk over ``[N, K, H]``; the result is called with slot 0, 1, ... and the predecessors ``[N]``."""

    def confidence_logits(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """Confidence ``[N, K]`` before calibration, from hidden states and predecessors ``[N, K]``; None without."""
        return None

    @override
    def forward(self, batch: CorrectionBatch) -> Correction:
        hidden = batch.hidden.to(self.output.weight.dtype)
        codes = self.codes(hidden, batch.previous)
        index = batch.counted.flatten().nonzero()[:, 0]
        numerator, predicted, overlap = biased_loss(
            batch.hidden.flatten(0, 1).index_select(0, index),
            codes.flatten(0, 1).index_select(0, index),
            self.output.weight,
            batch,
            index,
            want_overlap=self.confidence_head is not None,
        )
        ids = torch.full_like(batch.labels, -1).flatten().index_copy(0, index, batch.head.to_ids(predicted))
        correction = Correction(numerator, ids.view_as(batch.labels), {})
        logits = self.confidence_logits(hidden, batch.previous)
        if logits is not None:
            hit = predicted == batch.rows.flatten()[index]  # what a greedy target accepts
            acceptance = hit.float() if overlap is None else overlap
            self._learn_confidence(correction, logits.flatten()[index], acceptance, batch, index)
        return correction

    def _learn_confidence(
        self, correction: Correction, logits: Tensor, acceptance: Tensor, batch: CorrectionBatch, index: Tensor
    ) -> None:
        """Add the loss of the confidence over the slots ``index`` ``[n]``."""
        losses, weights = confidence_loss(logits, acceptance), batch.weights.flatten()[index]
        correction.numerator = correction.numerator + (losses * weights).sum()
        correction.diagnostics["confidence_loss"] = losses.detach().sum() / max(len(index), 1)
        correction.confidence = Confidence(logits.detach(), acceptance, index % batch.labels.shape[1])

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
        sampled = self.sample and temperature > 0
        step = self.walk(hidden.to(self.output.weight.dtype))
        tokens, laws, last = [], [], anchor
        for k in range(base_logits.shape[1]):
            logits = base_logits[:, k] + F.linear(step(k, last), self.output.weight)
            if sampled:
                laws.append(torch.softmax(logits.float() / temperature, -1))
                row = draw(laws[-1], generator)
            else:
                row = logits.argmax(-1)
            last = head.to_ids(row)
            tokens.append(last)
        q = whole_vocabulary(torch.stack(laws, 1), None, head, self.spec.vocab_size) if sampled else None
        proposal = Proposal(torch.stack(tokens, 1), q)
        if self.confidence_head is not None:
            # the confidence of a draft reads the one before it, so that one pass rates the whole walk
            previous = torch.stack([anchor, *tokens[:-1]], 1)
            ratings = self.confidence_logits(hidden.to(self.output.weight.dtype), previous)
            proposal.confidence = None if ratings is None else self.confidence_head.calibrated(ratings)
        return proposal


def biased_loss(
    hidden: Tensor, codes: Tensor, weight: Tensor, batch: CorrectionBatch, index: Tensor, want_overlap: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Weighted loss of ``head(hidden) + codes weight^T``, the most probable rows ``[n]``, and the overlap ``[n]``.

    Logits and all gradients are computed chunk by chunk in the forward pass, since the weights of the slots are known:
    what is kept are the gradients ``[n, H]``, ``[n, r]`` and ``[D, r]``, never logits ``[n, D]``.

    Args:
        hidden: ``[n, H]``.
        codes: ``[n, r]``.
        weight: ``[D, r]``.
        batch: Where weights and loss come from.
        index: ``[n]`` int64 flat slots.
        want_overlap: Also find the overlap with the target's distribution; None is returned where that is unknown.
    """
    if weight.shape[0] != batch.head.weight.shape[0]:
        raise ValueError(
            f"the corrector was made for {weight.shape[0]} rows, the head has {batch.head.weight.shape[0]}; set "
            "draft_vocab_size of its spec"
        )
    inputs = (hidden, codes, weight)
    wanted = [torch.is_grad_enabled() and tensor.requires_grad for tensor in inputs]
    grads = [torch.zeros_like(t, requires_grad=False) if want else None for t, want in zip(inputs, wanted, strict=True)]
    slot_weights = batch.weights.flatten()[index]
    total = slot_weights.new_zeros(())
    predicted = torch.empty_like(index)
    rate = batch.overlap if want_overlap else None
    overlap = None if rate is None else slot_weights.new_empty(len(index))
    for start in range(0, len(index), batch.chunk_size):
        part = slice(start, start + batch.chunk_size)
        own = [hidden[part].detach(), codes[part].detach(), weight.detach()]
        with torch.set_grad_enabled(any(wanted)):
            leaves = [tensor.requires_grad_(want) for tensor, want in zip(own, wanted, strict=True)]
            logits = batch.head(leaves[0]) + F.linear(leaves[1], leaves[2])
            loss = (batch.loss(logits, index[part]) * slot_weights[part]).sum()
        if any(wanted):
            chosen = [i for i, want in enumerate(wanted) if want]
            found = torch.autograd.grad(loss, [leaves[i] for i in chosen])
            for i, grad in zip(chosen, found, strict=True):
                stored = grads[i]
                assert stored is not None
                if i < 2:
                    stored[part] = grad
                else:
                    stored += grad
        total = total + loss.detach()
        predicted[part] = logits.detach().argmax(-1)
        if rate is not None and overlap is not None:
            with torch.no_grad():
                overlap[part] = rate(logits.detach(), index[part])
        del logits, loss
    if any(wanted):
        total = _KnownGradients.apply(total, *inputs, *grads)
    return total, predicted, overlap


class _KnownGradients(torch.autograd.Function):
    """A scalar whose gradients with respect to three inputs are known already."""

    @staticmethod
    @override
    def forward(ctx: Any, total: Tensor, *tensors: Tensor | None) -> Tensor:
        ctx.save_for_backward(*tensors[3:])
        return total.clone()

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        found = [None if grad is None else grad * outer[0].to(grad.dtype) for grad in ctx.saved_tensors]
        return (None, *found, None, None, None)
