"""How long the accepted prefixes of drafts are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from specdraft.metrics.functional import check_rounds, mean_accepted, prefix_counts, prefix_ratios

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class PrefixAcceptance(Metric):
    """Survival, conditional acceptance and histogram of the accepted length, pooled over rounds.

    As input to ``forward`` and ``update``: ``accepted`` ``[R]`` int64, and optionally ``drafted`` ``[R]`` int64,
    the drafts of each round that could have been accepted (a round may be cut short by a length limit).

    As output of ``compute`` a dict: ``survival`` ``[K]``, S_k = P(A >= k); ``acceptance`` ``[K]``, the share of
    offered k-th drafts that were accepted, given that all before were; ``histogram`` ``[K + 1]``, share of the rounds
    with A = 0..K. All zero without rounds. torchmetrics squeezes the vectors of ``K = 1`` to scalars.

    Args:
        num_drafts: Drafts K of a full round.

    Example:
        >>> metric = PrefixAcceptance(num_drafts=3)
        >>> metric.update(torch.tensor([3, 1, 0, 1]), torch.tensor([3, 3, 3, 1]))
        >>> {name: [round(x, 2) for x in value.tolist()] for name, value in metric.compute().items()}
        {'survival': [0.75, 0.25, 0.25], 'acceptance': [0.75, 0.5, 1.0], 'histogram': [0.25, 0.5, 0.0, 0.25]}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    # names of their own: a MetricCollection merges metrics whose states agree in name and, on one batch, in value
    prefix_offered_at: Tensor
    prefix_accepted_at: Tensor
    prefix_histogram: Tensor
    prefix_rounds: Tensor

    def __init__(self, num_drafts: int) -> None:
        super().__init__()
        if num_drafts < 1:
            raise ValueError(f"num_drafts must be at least 1, got {num_drafts}")
        self.num_drafts = num_drafts
        zeros = torch.zeros(num_drafts, dtype=torch.int64)
        self.add_state("prefix_offered_at", zeros.clone(), dist_reduce_fx="sum")
        self.add_state("prefix_accepted_at", zeros.clone(), dist_reduce_fx="sum")
        self.add_state("prefix_histogram", torch.zeros(num_drafts + 1, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("prefix_rounds", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @override
    def update(self, accepted: Tensor, drafted: Tensor | None = None) -> None:
        """Add rounds."""
        offered_at, accepted_at, histogram = prefix_counts(accepted, drafted, self.num_drafts)
        self.prefix_offered_at += offered_at
        self.prefix_accepted_at += accepted_at
        self.prefix_histogram += histogram
        self.prefix_rounds += accepted.numel()

    @override
    def compute(self) -> dict[str, Tensor]:
        """Ratios of the pooled counts.

        Raises:
            ValueError: If a round accepted more than ``num_drafts`` drafts, or fewer than none.
        """
        if int(self.prefix_histogram.sum()) != int(self.prefix_rounds):  # only here: it would synchronise every update
            raise ValueError(f"accepted lengths outside 0..{self.num_drafts}; raise num_drafts to the longest round")
        survival, acceptance = prefix_ratios(self.prefix_offered_at, self.prefix_accepted_at, self.prefix_rounds)
        histogram = self.prefix_histogram / self.prefix_rounds.clamp_min(1)
        return {"survival": survival, "acceptance": acceptance, "histogram": histogram}

    @override
    def plot(self, val: dict[str, Tensor] | None = None, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Draw survival and conditional acceptance over the position of the draft.

        Args:
            val: A result of ``compute`` (default: the present one).
            ax: Axes to draw into (default: new ones).

        Raises:
            ModuleNotFoundError: If matplotlib is missing.
        """
        values = self.compute() if val is None else val
        figure, ax = _axes(ax)
        where = range(1, self.num_drafts + 1)
        ax.plot(where, values["survival"].cpu().reshape(-1), marker="o", label="survival P(A >= k)")
        ax.plot(where, values["acceptance"].cpu().reshape(-1), marker="x", linestyle="--", label="acceptance")
        ax.set(xlabel="draft position k", ylim=(0, 1.02))
        ax.legend()
        return figure, ax


class MeanAcceptedTokens(Metric):
    """Mean accepted tokens per round, the correction or bonus token counted: the literature's tau.

    As input to ``forward`` and ``update``: ``accepted`` ``[R]`` int64, accepted drafts of each round; ``drafted`` is
    taken, so that sibling metrics share one call, and not read.

    As output of ``compute`` a scalar, ``E[A] + 1`` pooled: sum over rounds / rounds; 0 without rounds.

    Args:
        bonus: Whether the correction or bonus token counts; false gives ``mat_drafts``, E[A].

    Example:
        >>> metric = MeanAcceptedTokens()
        >>> metric.update(torch.tensor([3, 1, 0, 1]))
        >>> metric.compute()
        tensor(2.2500)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0

    mat_accepted_sum: Tensor
    mat_rounds: Tensor

    def __init__(self, bonus: bool = True) -> None:
        super().__init__()
        self.bonus = bonus
        self.add_state("mat_accepted_sum", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("mat_rounds", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @override
    def update(self, accepted: Tensor, drafted: Tensor | None = None) -> None:
        """Add rounds."""
        check_rounds(accepted, drafted)
        self.mat_accepted_sum += accepted.sum()
        self.mat_rounds += accepted.numel()

    @override
    def compute(self) -> Tensor:
        """Ratio of the pooled counts."""
        mat, drafts = mean_accepted(self.mat_accepted_sum, self.mat_rounds)
        return mat if self.bonus else drafts

    @override
    def plot(self, val: Tensor | list[Tensor] | None = None, ax: Axes | None = None) -> Any:
        """Draw one value, or several as a curve.

        Args:
            val: One or more results of ``compute`` (default: the present one).
            ax: Axes to draw into (default: new ones).
        """
        return self._plot(val, ax)


def _axes(ax: Axes | None) -> tuple[Figure, Axes]:
    if ax is not None:
        return ax.get_figure(), ax  # type: ignore[return-value]
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("plot() needs matplotlib; install specdraft[plot]") from error
    return plt.subplots()
