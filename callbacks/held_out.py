"""Which held-out prompts are decoded inside validation."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from specdraft.data.selection import dealt
from specdraft.decoding import Request


def held_out_requests(
    trainer: Trainer, module: Any, split: str, num_prompts: int | None, max_new_tokens: int
) -> tuple[list[Request], list[str]]:
    """The prompts of all ranks, in the order in which they are dealt, and their texts.

    Prompts that the target cannot hold together with their answer are left out, with a warning that names the first.

    Args:
        trainer: The trainer, whose data module has the prompts.
        module: The module, whose target decodes.
        split: ``val`` or ``test``.
        num_prompts: Prompts to take, dealt evenly over their families; None takes all.
        max_new_tokens: Tokens per prompt at most.

    Raises:
        ValueError: If no prompt is left.
    """
    prompts = trainer.datamodule.prompts(split)  # type: ignore[attr-defined]
    if not prompts:
        raise ValueError(f"the data module has no {split} prompts to decode; give it {split} data")
    positions = module.target.spec.max_position_embeddings
    fitting = [prompt for prompt in prompts if len(prompt.prompt_ids) + max_new_tokens <= positions]
    if not fitting:
        raise ValueError(
            f"no {split} prompt with max_new_tokens {max_new_tokens} fits the target's {positions} positions; lower it"
        )
    if lost := len(prompts) - len(fitting):
        first = next(prompt for prompt in prompts if prompt not in fitting)
        rank_zero_warn(
            f"{lost} of {len(prompts)} {split} prompts are not decoded: with max_new_tokens {max_new_tokens} they "
            f"exceed the target's {positions} positions; the first is {first.id}, of {len(first.prompt_ids)} tokens"
        )
    chosen = dealt(fitting, [prompt.family for prompt in fitting], num_prompts)
    stops = module.target.stop_token_ids
    requests = [Request(prompt.prompt_ids, max_new_tokens, stops, prompt.family) for prompt in chosen]
    return requests, [prompt.text for prompt in chosen]
