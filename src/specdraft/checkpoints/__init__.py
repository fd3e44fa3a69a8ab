"""Checkpoints: crash-safe writing, and checks that a checkpoint fits."""

from specdraft.checkpoints.atomic import AtomicCheckpointIO
from specdraft.checkpoints.facts import check_corrector, check_facts, checkpoint_facts

__all__ = ["AtomicCheckpointIO", "check_corrector", "check_facts", "checkpoint_facts"]
