"""Weights of a checkpoint into parts that were made for the same purpose."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from specdraft.checkpoints.facts import KEY, check_eps, check_facts, check_weights
from specdraft.drafters.base import Drafter

Content = dict[str, Any]


def load_weights(
    content: Content, wanted: Content, drafter: Drafter, corrector: nn.Module, draft_token_ids: Tensor, path: str
) -> bool:
    """Take drafter weights, draft vocabulary and those of the same corrector; another corrector stays as it is.

    Args:
        content: Facts and ``state_dict``, see :func:`specdraft.checkpoints.registry.read_content`.
        wanted: Facts of the run that takes them.
        drafter: Takes its weights.
        corrector: Takes its weights if class, options and shapes are the same.
        draft_token_ids: ``[D]`` int64, filled in place; empty without a draft vocabulary.
        path: Where the content is from, for messages.

    Returns:
        Whether the corrector was taken too; true where it has no weights.

    Raises:
        ValueError: If it was made for another target, drafter, slot convention or vocabulary.
    """
    check_facts(content, wanted, path)
    check_eps(content, drafter.spec.rms_norm_eps, path)
    state = content["state_dict"]
    weights = {k[8:]: v for k, v in state.items() if k.startswith("drafter.")}
    check_weights(weights, drafter.state_dict(), path)
    drafter.load_state_dict(weights)
    if len(draft_token_ids):
        draft_token_ids.copy_(state["draft_token_ids"])
    own = corrector.state_dict()
    found = {k[10:]: v for k, v in state.items() if k.startswith("corrector.")}
    same = content[KEY].get("corrector") == wanted["corrector"]
    if same and {k: v.shape for k, v in own.items()} == {k: v.shape for k, v in found.items()}:
        corrector.load_state_dict(found)
        return True
    if own:
        rank_zero_info(f"{path} holds no {type(corrector).__name__} like this one: the corrector starts anew")
    return not own
