"""DSpark's Markov head, which two formats store alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdraft.checkpoints.fields import Config, integer, required
from specdraft.checkpoints.heads import MARKOV, take
from specdraft.checkpoints.record import CorrectorPart, DraftCheckpoint, Tensors, corrector_part

KINDS = {
    "vanilla": (),
    "gated": ("gate_proj.weight", "gate_proj.bias"),
    "rnn": ("joint_proj.weight", "joint_proj.bias"),
}
CONFIDENCE = "confidence_head."


def markov_fields(corrector: CorrectorPart) -> Config:
    """Fields of the head; rank 0 says that there is none."""
    if corrector.name == "NoCorrector":
        return {"markov_rank": 0, "enable_confidence_head": False, "confidence_head_with_markov": False}
    return {
        "markov_rank": corrector.facts["rank"],
        "markov_head_type": corrector.facts["kind"],
        "enable_confidence_head": False,
        "confidence_head_with_markov": False,
    }


def read_markov(
    config: Mapping[str, Any], tensors: Tensors, where: str
) -> tuple[CorrectorPart, Tensors, tuple[str, ...]]:
    """The head, the tensors that are not its own, and notes.

    Raises:
        ValueError: If a field or tensor is missing, or they disagree.
    """
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(CONFIDENCE)}
    notes: tuple[str, ...] = ()
    if len(rest) < len(tensors):
        notes = ("the confidence head is left out: it only shortens drafts, and its default threshold never does",)
    rank = integer(config, "markov_rank", where, 0)
    if not rank:
        return CorrectorPart(), rest, notes
    kind = required(config, "markov_head_type", where, '"markov_head_type": "vanilla", "gated" or "rnn"')
    if kind not in KINDS:
        raise ValueError(f"{where}: markov_head_type {kind!r} is unknown; specdraft reads {', '.join(KINDS)}")
    ours = ("predecessor.weight", "output.weight", *KINDS[kind])
    mine, rest = take(rest, {name: MARKOV[name] for name in ours})
    if mine["predecessor.weight"].shape[1] != rank:
        found = mine["predecessor.weight"].shape[1]
        raise ValueError(f"{where}: markov_rank is {rank}, but the weights have {found}; correct the field")
    return corrector_part("MarkovCorrector", {"kind": kind, "rank": rank}, mine), rest, notes


def anchors(checkpoint: DraftCheckpoint) -> int:
    """Anchors per training sequence: the formats demand the number, but only training reads it."""
    return int(checkpoint.training.get("num_anchors") or 512)
