"""How far confidences can be trusted, and temperatures that mend them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from typing_extensions import override

# logits are counted in steps of 0.1; beyond 12 a sigmoid is 0 or 1 to 6e-6
EDGE, BINS = 12.0, 240
# least and largest temperature
RANGE = (0.05, 20.0)


class ConfidenceCounts(Metric):
    """Sufficient statistics of confidences: per draft position, a fine histogram of logits and what became of them.

    Expected calibration error and temperatures are functions of it (:func:`expected_calibration_error`,
    :func:`fit_temperatures`), so that ranks pool sums and never exchange single slots.

    As input to ``forward`` and ``update``: ``logits`` ``[n]`` float, ``acceptance`` ``[n]`` float in [0, 1] and
    ``positions`` ``[n]`` int64 in 0..K-1.

    As output of ``compute`` ``[3, K, bins]`` float64: number of slots, sum of logits, sum of acceptance.

    Args:
        num_drafts: Draft positions K.

    Example:
        >>> metric = ConfidenceCounts(num_drafts=1)
        >>> metric.update(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.5]), torch.tensor([0, 0]))
        >>> expected_calibration_error(metric.compute(), torch.ones(1))
        tensor([0.2500], dtype=torch.float64)
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    confidence_slots: Tensor
    confidence_sums: Tensor

    def __init__(self, num_drafts: int) -> None:
        super().__init__()
        if num_drafts < 1:
            raise ValueError(f"num_drafts must be at least 1, got {num_drafts}")
        self.num_drafts = num_drafts
        self.add_state("confidence_slots", torch.zeros(num_drafts * BINS, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("confidence_sums", torch.zeros(2, num_drafts * BINS, dtype=torch.float32), dist_reduce_fx="sum")

    @override
    def update(self, logits: Tensor, acceptance: Tensor, positions: Tensor) -> None:
        """Add slots.

        Raises:
            ValueError: If the shapes are not all ``[n]``.
        """
        if logits.ndim != 1 or not logits.shape == acceptance.shape == positions.shape:
            raise ValueError(
                f"logits {list(logits.shape)}, acceptance {list(acceptance.shape)} and positions "
                f"{list(positions.shape)} must all be [n]"
            )
        logits = logits.float().clamp(-EDGE, EDGE)
        bins = ((logits + EDGE) * (BINS / (2 * EDGE))).long().clamp(max=BINS - 1)
        where = positions * BINS + bins
        self.confidence_slots += torch.bincount(where, minlength=self.num_drafts * BINS)
        self.confidence_sums.index_add_(1, where, torch.stack([logits, acceptance.float()]))

    @override
    def compute(self) -> Tensor:
        """The pooled counts and sums."""
        # on the CPU: in float64, which not every device has, and far too little work for another
        sums = torch.cat([self.confidence_slots[None].cpu().double(), self.confidence_sums.cpu().double()])
        return sums.view(3, self.num_drafts, BINS)


def fit_temperatures(counts: Tensor, steps: int = 60) -> Tensor:
    """Temperature of each position that makes ``sigmoid(logit / T)`` most likely (Guo et al., arXiv 1706.04599).

    The likelihood is concave in ``1 / T``; its derivative is bisected.

    Args:
        counts: ``[3, K, bins]`` of :class:`ConfidenceCounts`.
        steps: Halvings of the interval of ``log T``.

    Returns:
        ``[K]`` float32 within 0.05..20; 1 for a position without slots.
    """
    number, logit_sum, accepted = counts
    logits = logit_sum / number.clamp(min=1)
    low = torch.full(number.shape[:1], RANGE[0], dtype=counts.dtype).log()
    high = torch.full_like(low, RANGE[1]).log()
    for _ in range(steps):
        middle = (low + high) / 2
        # derivative of the negative log-likelihood with respect to 1 / T; it rises with 1 / T
        slope = (logits * (number * torch.sigmoid(logits / middle.exp()[:, None]) - accepted)).sum(-1)
        low, high = torch.where(slope > 0, middle, low), torch.where(slope > 0, high, middle)
    return torch.where(number.sum(-1) > 0, ((low + high) / 2).exp(), 1.0).float()


def expected_calibration_error(counts: Tensor, temperatures: Tensor, bins: int = 15) -> Tensor:
    """Mean distance of confidence and acceptance over bins of equal width, weighted by their slots.

    Args:
        counts: ``[3, K, bins]`` of :class:`ConfidenceCounts`.
        temperatures: ``[K]``, positive; ones leave the confidences as they are.
        bins: Bins of the confidence over 0..1.

    Returns:
        ``[K]`` float64; 0 for a position without slots.
    """
    number, logit_sum, accepted = counts
    confidence = torch.sigmoid(logit_sum / number.clamp(min=1) / temperatures.to(counts)[:, None])
    belongs = F.one_hot((confidence * bins).long().clamp(max=bins - 1), bins).to(counts)
    gap = ((number * confidence - accepted)[..., None] * belongs).sum(1).abs().sum(-1)
    return gap / number.sum(-1).clamp(min=1)
