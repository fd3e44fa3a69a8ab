"""Teacher-forced validation: every metric of a run in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric
from typing_extensions import override

from specdraft.metrics import (
    CandidateRecall,
    ConfidenceCounts,
    MeanAcceptedTokens,
    OraclePrefix,
    PrefixAcceptance,
    expected_calibration_error,
    fit_temperatures,
    match_prefix,
)
from specdraft.types import BlockBatch


class Rated(Protocol):
    """Confidences of n slots: logits, what became of them, and their draft positions, each ``[n]``."""

    logits: Tensor
    acceptance: Tensor
    positions: Tensor


class Calibrated(Protocol):
    """Something with a temperature per draft position."""

    def temperatures_of(self, count: int) -> Tensor:
        """Temperatures ``[count]`` of the first draft positions."""


@contextmanager
def float32_default() -> Iterator[None]:
    """Metrics take the type of their sums from torch's default, which ``precision: bf16-true`` changes."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class ValidationMetrics(nn.Module):
    """Pooled metrics of corrected and uncorrected teacher-forced drafts.

    Sums stay float32 whatever the precision of the module around them: in bfloat16 they would stop to grow.

    Args:
        num_drafts: Drafts K of a full round.
        first_slot: First slot that predicts a token.
        candidates: Candidates per slot of the corrector; recall is shown for 1, 4, 16 and this number.
        families: Names of the families of prompts.
    """

    def __init__(self, num_drafts: int, first_slot: int, candidates: int, families: Sequence[str] = ()) -> None:
        super().__init__()
        self.num_drafts = num_drafts
        self.drafts = slice(first_slot, None)
        self.acceptance = PrefixAcceptance(num_drafts)
        self.mat = MeanAcceptedTokens()
        self.base_mat = MeanAcceptedTokens()
        with float32_default():
            self.loss = MeanMetric()
        self.recall = CandidateRecall(sorted({1, 4, 16, candidates}))
        self.oracle = OraclePrefix(candidates)
        self.confidence = ConfidenceCounts(num_drafts)
        # by place: a name may hold a dot or be that of a method, which module names must not
        self.families = {name: place for place, name in enumerate(families)}
        self.family_mat = nn.ModuleList(MeanAcceptedTokens() for _ in self.families)
        # made at the first value and dropped by reset: what inference mode made is of no use to training
        self.parts: dict[str, MeanMetric] = {}

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ValidationMetrics:
        with float32_default():
            super()._apply(lambda values: fn(values).to(values.dtype), recurse)
        return self

    def update(
        self,
        blocks: BlockBatch,
        predicted: Tensor,
        base_predicted: Tensor,
        ranks: Tensor,
        families: Sequence[str],
        confidence: Rated | None = None,
    ) -> None:
        """Add the blocks of a batch.

        Args:
            blocks: The blocks.
            predicted: ``[N, A, B]`` int64, the corrected choice of every slot.
            base_predicted: ``[N, A, B]`` int64, the drafter's own choice.
            ranks: ``[N, A, B]`` int64, place of each label among the drafter's logits.
            families: Family of each row, or nothing.
            confidence: The corrector's confidences, where it has any.
        """
        if confidence is not None:
            self.confidence.update(confidence.logits, confidence.acceptance, confidence.positions)
        labels, supervised = blocks.labels[..., self.drafts], blocks.supervised[..., self.drafts]
        accepted, drafted = match_prefix(predicted[..., self.drafts], labels, supervised)
        base_accepted, _ = match_prefix(base_predicted[..., self.drafts], labels, supervised)
        counted = drafted > 0
        self.acceptance.update(accepted[counted], drafted[counted])
        self.mat.update(accepted[counted])
        self.base_mat.update(base_accepted[counted])
        ranks = ranks[..., self.drafts]
        self.recall.update(ranks[supervised])
        self.oracle.update(ranks[counted], supervised[counted])
        for row, family in enumerate(families):
            if family in self.families:
                self.family_mat[self.families[family]].update(accepted[row][counted[row]])  # type: ignore[operator]

    def update_part(self, name: str, value: Tensor, denominator: Tensor) -> None:
        """Add a part of the loss, or a diagnostic, of a batch.

        Args:
            name: Its name; it is logged under ``val/``.
            value: Scalar, a mean over the batch.
            denominator: Scalar, what it is a mean over.
        """
        with float32_default():
            if name not in self.parts:
                self.parts[name] = MeanMetric().to(value.device)
            self.parts[name].update(value, denominator)

    def mat_of(self, drafts: int) -> float:
        """Teacher-forced MAT were only the first ``drafts`` drafts of each round offered; 0 without rounds."""
        histogram = self.acceptance.compute()["histogram"]
        lengths = torch.arange(len(histogram), device=histogram.device).clamp(max=drafts)
        return float(((1 + lengths) * histogram).sum())

    def temperatures(self) -> Tensor:
        """Temperature ``[K]`` of each draft position that calibrates the confidences seen so far."""
        return fit_temperatures(self.confidence.compute())

    def compute(self, head: Calibrated | None = None) -> dict[str, Tensor]:
        """Every value by the name under which it is logged.

        Args:
            head: Holds the temperatures of the confidences, where the corrector has any.
        """
        # K = 1 comes as a scalar
        curves = {name: value.flatten() for name, value in self.acceptance.compute().items()}
        mat = self.mat.compute()
        values = {
            "val/loss": self.loss.compute(),
            "val/mat": mat,
            "val/mat_drafts": mat - 1,
            "val/base_mat": self.base_mat.compute(),
            "val/oracle_prefix": self.oracle.compute(),
        }
        for k, recall in zip(self.recall.ks, self.recall.compute().flatten(), strict=True):
            values[f"val/candidate_recall@{k}"] = recall
        for k in range(self.num_drafts):
            values[f"val/survival_at/{k + 1}"] = curves["survival"][k]
            values[f"val/accept_at/{k + 1}"] = curves["acceptance"][k]
        for name, part in sorted(self.parts.items()):
            values[f"val/{name}"] = part.compute()
        for family, place in self.families.items():
            values[f"val/mat_family/{family}"] = self.family_mat[place].compute()  # type: ignore[operator]
        if head is not None:
            calibration = self._calibration(head.temperatures_of(self.num_drafts).cpu())
            values |= {name: value.to(mat.device) for name, value in calibration.items()}
        return values

    def _calibration(self, temperatures: Tensor) -> dict[str, Tensor]:
        """Calibration error without and with the temperatures, averaged over all slots, and at each position."""
        counts = self.confidence.compute()
        share = counts[0].sum(-1) / counts[0].sum().clamp(min=1)
        values = {}
        for name, chosen in (("before", torch.ones_like(temperatures)), ("after", temperatures)):
            error = expected_calibration_error(counts, chosen)
            values[f"val/confidence_ece_{name}"] = (error * share).sum().float()
            for k in range(self.num_drafts):
                values[f"val/confidence_ece_{name}_at/{k + 1}"] = error[k].float()
        return values

    def reset(self) -> None:
        """Forget everything."""
        for metric in (self.acceptance, self.mat, self.base_mat, self.loss, self.recall, self.oracle, self.confidence):
            metric.reset()
        for family_metric in self.family_mat:
            family_metric.reset()  # type: ignore[operator]
        self.parts = {}
