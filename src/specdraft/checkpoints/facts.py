"""What a checkpoint says of itself, and whether it fits the run that loads it."""

from __future__ import annotations

from math import isclose
from typing import Any

from torch import Tensor

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
        if facts["spec"][fact] is not None:  # a public file may leave the target's name and depth open
            _same(f"target {fact}", facts["spec"][fact], wanted["spec"][fact], path, "model.target")
    if facts.get("scales") and wanted.get("scales") and not _close(facts["scales"], wanted["scales"]):
        _same("target scaling", facts["scales"], wanted["scales"], path, "model.target")
    for fact in {**wanted["drafter"], **facts["drafter"]}:
        _same(f"drafter {fact}", facts["drafter"].get(fact), wanted["drafter"].get(fact), path, "model.drafter")
    _same("draft_vocab_size", facts["draft_vocab_size"], wanted["draft_vocab_size"], path, "model")


def check_weights(found: dict[str, Tensor], own: dict[str, Tensor], path: str) -> None:
    """Refuse drafter weights that this run's drafter has no place for.

    Raises:
        ValueError: Naming the first tensor that is missing, left over, or of another shape.
    """
    for name in sorted(set(found) | set(own)):
        theirs, ours = (tuple(state[name].shape) if name in state else None for state in (found, own))
        where = "model.drafter (num_layers, heads, sizes, tap_norm, layer_fusion)"
        _same(f"drafter weight {name} of shape", theirs, ours, path, where)


def check_eps(found: dict[str, Any], eps: float, path: str) -> None:
    """Refuse norms of another epsilon, which a drafter takes from its target.

    Raises:
        ValueError: Naming both values.
    """
    _same("drafter rms_norm_eps", found[KEY]["spec"]["rms_norm_eps"], eps, path, "model.target")


def check_corrector(found: dict[str, Any], wanted: dict[str, Any], path: str) -> None:
    """Refuse a checkpoint whose corrector is another one; a warm start need not ask.

    Raises:
        ValueError: Naming both values of the first fact that differs.
    """
    facts = found[KEY].get("corrector", {"class": "NoCorrector"})
    for fact in {**wanted["corrector"], **facts}:
        _same(f"corrector {fact}", facts.get(fact), wanted["corrector"].get(fact), path, "model.corrector")


def _close(found: dict[str, float | None], wanted: dict[str, float | None]) -> bool:
    """Whether scales are equal as far as bf16 tells: public files may hold what their model multiplied by, rounded."""
    pairs = [(found.get(name), wanted.get(name)) for name in {**found, **wanted}]
    return all(a == b or (None not in (a, b) and isclose(a, b, rel_tol=2**-8)) for a, b in pairs)  # type: ignore[arg-type]


def _same(fact: str, found: Any, wanted: Any, path: str, where: str) -> None:
    if found != wanted:
        raise ValueError(
            f"checkpoint {path} does not fit: it was made with {fact} {found!r}, this run has {wanted!r}; "
            f"change {where} or choose another checkpoint"
        )
