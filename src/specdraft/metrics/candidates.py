"""What a choice among candidates could reach at best."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from specdraft.metrics.functional import check_rounds, mean_accepted


class CandidateRecall(Metric):
    """Share of the slots whose label is among the drafter's k most probable tokens, for several k.

    As input to ``forward`` and ``update``: ``ranks`` ``[R]`` int64, place of each label among the drafter's logits,
    0 for the most probable.

    As output of ``compute`` ``[len(ks)]``, in the order of ``ks``; 0 without slots. torchmetrics squeezes one k.

    Args:
        ks: Numbers of candidates.

    Example:
        >>> metric = CandidateRecall(ks=(1, 4))
        >>> metric.update(torch.tensor([0, 3, 0, 9]))
        >>> metric.compute()
        tensor([0.5000, 0.7500])
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    recall_hits: Tensor
    recall_slots: Tensor

    def __init__(self, ks: Sequence[int] = (1, 4, 16)) -> None:
        super().__init__()
        if not ks or min(ks) < 1:
            raise ValueError(f"ks must hold numbers of candidates of at least 1, got {list(ks)}")
        self.ks = tuple(ks)
        self.add_state("recall_hits", torch.zeros(len(self.ks), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("recall_slots", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @override
    def update(self, ranks: Tensor) -> None:
        """Add slots."""
        check_rounds(ranks, None)
        self.recall_hits += (ranks[:, None] < torch.tensor(self.ks, device=ranks.device)).sum(0)
        self.recall_slots += ranks.numel()

    @override
    def compute(self) -> Tensor:
        """Ratios of the pooled counts."""
        return self.recall_hits / self.recall_slots.clamp_min(1)


class OraclePrefix(Metric):
    """MAT of an oracle that picks the label wherever it is among the k most probable tokens of its slot.

    The ceiling of every corrector that chooses among k candidates, on the scale of
    :class:`~specdraft.metrics.MeanAcceptedTokens`: the correction or bonus token counts.

    As input to ``forward`` and ``update``: ``ranks`` ``[R, K]`` int64, place of each label among the drafter's logits,
    and ``supervised`` ``[R, K]`` bool, slots with a label; what follows the first false one does not count.

    As output of ``compute`` a scalar, pooled: sum over rounds / rounds, plus 1; 0 without rounds.

    Args:
        k: Number of candidates.

    Example:
        >>> metric = OraclePrefix(k=2)
        >>> metric.update(torch.tensor([[0, 1, 5], [1, 7, 0]]), torch.ones(2, 3, dtype=torch.bool))
        >>> metric.compute()
        tensor(2.5000)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0

    oracle_accepted_sum: Tensor
    oracle_rounds: Tensor

    def __init__(self, k: int = 16) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self.k = k
        self.add_state("oracle_accepted_sum", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("oracle_rounds", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @override
    def update(self, ranks: Tensor, supervised: Tensor) -> None:
        """Add rounds.

        Raises:
            ValueError: If the shapes differ or are not ``[R, K]``.
        """
        if ranks.ndim != 2 or ranks.shape != supervised.shape:
            raise ValueError(f"ranks {list(ranks.shape)} and supervised {list(supervised.shape)} must both be [R, K]")
        self.oracle_accepted_sum += ((ranks < self.k) & supervised).long().cumprod(-1).sum()
        self.oracle_rounds += ranks.shape[0]

    @override
    def compute(self) -> Tensor:
        """Ratio of the pooled counts."""
        return mean_accepted(self.oracle_accepted_sum, self.oracle_rounds)[0]
