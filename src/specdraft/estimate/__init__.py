"""What a training run will take: memory, work and time, from shapes alone."""

from specdraft.estimate.allocations import AllocationPeak
from specdraft.estimate.command import estimate
from specdraft.estimate.step import StepCost, StepShape, step_cost

__all__ = ["AllocationPeak", "StepCost", "StepShape", "estimate", "step_cost"]
