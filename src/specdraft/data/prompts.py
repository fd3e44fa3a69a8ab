"""The prompts of the embedded data set: written for this package, built by rule, the same on every machine."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from specdraft.data.prompt_families import arithmetic, code, lists, questions, rewriting

Family = Literal["arithmetic", "lists", "rewriting", "code", "questions"]
Split = Literal["train", "heldout"]

_FAMILIES: dict[Family, dict[Split, Callable[[], list[str]]]] = {
    "arithmetic": {"train": arithmetic.train, "heldout": arithmetic.heldout},
    "lists": {"train": lists.train, "heldout": lists.heldout},
    "rewriting": {"train": rewriting.train, "heldout": rewriting.heldout},
    "code": {"train": code.train, "heldout": code.heldout},
    "questions": {"train": questions.train, "heldout": questions.heldout},
}


@dataclass(frozen=True)
class PromptRow:
    """One prompt.

    Args:
        id: Family and a digest of the text, so that it survives edits of other prompts.
        family: The kind of request, the unit of per-workload results.
        prompt: Text of the user's turn.
    """

    id: str
    family: Family
    prompt: str


def build_prompts(split: Split) -> list[PromptRow]:
    """All prompts of one split, families interleaved so that every prefix holds them in proportion.

    Args:
        split: ``train`` (14,967 prompts) or ``heldout`` (64, on words and scenarios that training never uses).

    Raises:
        ValueError: If the split has another name.
    """
    if split not in get_args(Split):
        raise ValueError(f"split is {split!r}; choose one of {list(get_args(Split))}")
    rng = random.Random(f"order/{split}")
    placed: list[tuple[float, PromptRow]] = []
    for family, builders in _FAMILIES.items():
        prompts = builders[split]()
        for index, prompt in enumerate(prompts):
            digest = hashlib.sha256(prompt.encode()).hexdigest()[:12]
            # prompt i of n goes somewhere in the i-th n-th of the order: mixed, and never out of proportion
            place = (index + rng.random()) / len(prompts)
            placed.append((place, PromptRow(f"{family}-{digest}", family, prompt)))
    return [row for _, row in sorted(placed, key=lambda pair: pair[0])]
