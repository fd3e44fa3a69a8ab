"""What a checkpoint says of itself, and whether it fits the run that loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specdraft.drafters.base import Drafter
from specdraft.types import TargetSpec

KEY = "specdraft"


def checkpoint_facts(
    spec: TargetSpec, drafter: Drafter, draft_vocab_size: int | None, corrector: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Everything that decides how the weights must be used; builtins only, for ``weights_only`` loading."""
    return {
        "spec": spec.to_dict(),
        "drafter": {"class": type(drafter).__name__, **drafter.extra_state_for_checkpoint()},
        "draft_vocab_size": draft_vocab_size,
        "corrector": corrector or {"class": "NoCorrector"},
    }


def check_facts(found: dict[str, Any], wanted: dict[str, Any], path: str) -> None:
    """Refuse a checkpoint that was made for something else.

    Raises:
        ValueError: Naming both values of the first fact that differs.
    """
    if KEY not in found:
        raise ValueError(f"{path} is not a specdraft checkpoint: it has no {KEY!r} entry")
    facts = found[KEY]
    for fact in ("name", "hidden_size", "vocab_size", "num_layers", "taps", "mask_token_id"):
        _same(f"target {fact}", facts["spec"][fact], wanted["spec"][fact], path, "model.target")
    for fact in wanted["drafter"]:
        _same(f"drafter {fact}", facts["drafter"].get(fact), wanted["drafter"][fact], path, "model.drafter")
    _same("draft_vocab_size", facts["draft_vocab_size"], wanted["draft_vocab_size"], path, "model")


def fitting_checkpoint(path: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint to start from.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it was made for something else.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"init_from: no checkpoint at {path}")
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    check_facts(found, wanted, path)
    return found


def check_corrector(found: dict[str, Any], wanted: dict[str, Any], path: str) -> None:
    """Refuse a checkpoint whose corrector is another one; a warm start need not ask.

    Raises:
        ValueError: Naming both values of the first fact that differs.
    """
    facts = found[KEY].get("corrector", {"class": "NoCorrector"})
    for fact in {**wanted["corrector"], **facts}:
        _same(f"corrector {fact}", facts.get(fact), wanted["corrector"].get(fact), path, "model.corrector")


def _same(fact: str, found: Any, wanted: Any, path: str, where: str) -> None:
    if found != wanted:
        raise ValueError(
            f"checkpoint {path} does not fit: it was made with {fact} {found!r}, this run has {wanted!r}; "
            f"change {where} or choose another checkpoint"
        )
