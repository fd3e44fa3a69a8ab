"""Checkpoints: crash-safe writing, checks that a checkpoint fits, and the public formats."""

from specdraft.checkpoints.atomic import AtomicCheckpointIO
from specdraft.checkpoints.facts import check_corrector, check_facts, checkpoint_facts
from specdraft.checkpoints.formats import Format, FrozenRows
from specdraft.checkpoints.record import CorrectorPart, DFlashOptions, DraftCheckpoint, TargetFacts
from specdraft.checkpoints.registry import FORMATS, digest, format_named, read_checkpoint, read_content, read_folder

__all__ = [
    "FORMATS",
    "AtomicCheckpointIO",
    "CorrectorPart",
    "DFlashOptions",
    "DraftCheckpoint",
    "Format",
    "FrozenRows",
    "TargetFacts",
    "check_corrector",
    "check_facts",
    "checkpoint_facts",
    "digest",
    "format_named",
    "read_checkpoint",
    "read_content",
    "read_folder",
]
