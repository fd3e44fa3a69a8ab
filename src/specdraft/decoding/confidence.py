"""Verify fewer drafts where the corrector does not expect more to be accepted."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specdraft.types import DecodingCorrector, Head, Proposal


class ConfidenceCut:
    """A corrector whose drafts are verified only while the product of their confidences stays at the threshold.

    Draft k is offered while ``c_1 c_2 ... c_k >= threshold`` (DSpark, arXiv 2607.05147). Each confidence is a function
    of the drafts *before* its own, so whether a draft is verified is settled before it is drawn: the cut is a
    stopping rule and the output keeps the target's law, for the token rule and for the block rule. A limit that saw
    the drawn token would not be lossless.

    Args:
        corrector: Proposes the drafts, with confidences.
        threshold: Least probability that a draft is reached and accepted, in [0, 1]; 1 verifies nothing unless it is
            certain.

    Raises:
        ValueError: If the threshold is outside [0, 1], or the corrector has no ``confidence_head``.
    """

    def __init__(self, corrector: DecodingCorrector, threshold: float) -> None:
        check_threshold(threshold)
        self.corrector, self.threshold = corrector, threshold
        if getattr(corrector, "confidence_head", self) is None:  # known before anything is decoded
            raise self._no_confidence()

    def propose(
        self,
        hidden: Tensor,
        base_logits: Tensor,
        anchor: Tensor,
        temperature: float,
        generator: torch.Generator | None,
        head: Head,
    ) -> Proposal:
        """The corrector's drafts with the limit of each row.

        Raises:
            ValueError: If the corrector gives no confidence.
        """
        proposal = self.corrector.propose(hidden, base_logits, anchor, temperature, generator, head)
        if proposal.confidence is None:
            raise self._no_confidence()
        # the product never rises, so those at the threshold are a prefix
        limit = (proposal.confidence.cumprod(-1) >= self.threshold).sum(-1)
        return replace(proposal, limit=limit)

    def _no_confidence(self) -> ValueError:
        return ValueError(
            f"{type(self.corrector).__name__} gives no confidence, but confidence_threshold is {self.threshold:g}; "
            "use MarkovCorrector with confidence: true, or threshold 0"
        )


def with_threshold(corrector: DecodingCorrector, threshold: float) -> DecodingCorrector:
    """The corrector as it is for threshold 0, which never cuts, else with a :class:`ConfidenceCut`.

    Raises:
        ValueError: If the threshold is outside [0, 1], or cuts by confidences that the corrector does not give.
    """
    check_threshold(threshold)
    return ConfidenceCut(corrector, threshold) if threshold else corrector


def check_threshold(threshold: float) -> None:
    """Refuse what is no probability.

    Raises:
        ValueError: Naming the value.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"confidence_threshold must be in [0, 1], got {threshold:g}; 0 verifies every draft")


def offered(proposal: Proposal, room: Tensor, static: bool) -> tuple[Proposal, Tensor]:
    """The drafts that the target is asked about, and the most that each row may accept.

    Without a limit nothing changes. With one, the block is cut behind the longest row, so that the target computes
    less; on a GPU this waits for the device once more. Static shapes keep all drafts and only limit the rows.

    Args:
        proposal: The drafts of the round.
        room: ``[N]`` int64, drafts that every row may still accept for other reasons.
        static: Whether shapes must stay.

    Returns:
        Drafts ``[N, k]`` with ``k <= K``, and limits ``[N]``.
    """
    if proposal.limit is None:
        return proposal, room
    limit = torch.minimum(room, proposal.limit)
    if static:
        return proposal, limit
    width = int(limit.max())
    return Proposal(proposal.tokens[:, :width], None if proposal.q is None else proposal.q[:, :width]), limit
