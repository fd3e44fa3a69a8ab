"""Commands that use a target or a trained drafter outside training."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import torch

from specdraft.callbacks.report import token_groups
from specdraft.checkpoints import digest
from specdraft.checkpoints.facts import KEY
from specdraft.checkpoints.lightning_file import load_content
from specdraft.data.evaluation_sets import EVALUATION_SETS, evaluation_rows
from specdraft.decoding import (
    BlockPolicy,
    DecodeResult,
    MadeFor,
    Request,
    RequestResult,
    SamplingParams,
    autoregressive_decode,
    load_policy,
    speculative_decode,
    with_threshold,
)
from specdraft.interchange import module_from_folder
from specdraft.module import DraftingModule
from specdraft.packing import pack_linears
from specdraft.targets import loading_onto

GREEN, BOLD, RESET = "\033[32m", "\033[1m", "\033[0m"


def load_module(
    checkpoint: str, device: str = "auto", target: str | None = None, drafter_dtype: str = "auto"
) -> DraftingModule:
    """Load a trained module with its target, ready to decode.

    Args:
        checkpoint: Checkpoint written by ``specdraft fit``, or exported folder.
        device: ``auto``, ``cpu`` or ``cuda``.
        target: Target by name or folder, such as one that has moved; None takes the one that the checkpoint names.
        drafter_dtype: Type of drafter and corrector; auto is the target's.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the target is not the one that the checkpoint was made for.
    """
    if not Path(checkpoint).exists():
        raise FileNotFoundError(f"no checkpoint at {checkpoint}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    with loading_onto(device):
        if Path(checkpoint).is_dir():
            module = module_from_folder(checkpoint, device, target)
        else:
            module = _module_from_file(checkpoint, target)
    module.to(device).eval()
    module.target.to(torch.device(device))
    kind = module.target.dtype if drafter_dtype == "auto" else getattr(torch, drafter_dtype)
    for part in (module.drafter, module.corrector):
        part.to(kind)
        pack_linears(part)  # never trained from here on, so that packed copies of the weights stay true
    return module


def _module_from_file(checkpoint: str, target: str | None) -> DraftingModule:
    """A module of a file, on the CPU but for its target; a target that is named may have another name than its own."""
    if target is None:
        return DraftingModule.load_from_checkpoint(checkpoint, map_location="cpu")
    content = load_content(checkpoint)
    known = (content.get("hyper_parameters") or {}).get("target")
    if not isinstance(known, dict):
        raise ValueError(
            f"{checkpoint} holds no configuration of its target, so {target!r} cannot replace it; leave --target out"
        )
    content[KEY]["spec"]["name"] = None  # everything else about the target is still compared
    content["optimizer_states"] = []
    file = BytesIO()
    torch.save(content, file)
    file.seek(0)
    return DraftingModule.load_from_checkpoint(file, map_location="cpu", target={**known, "path": target})


def open_policy(path: str, module: DraftingModule, checkpoint: str, params: SamplingParams) -> BlockPolicy:
    """The policy of a file for a loaded checkpoint, with a warning where it was made for something else.

    Args:
        path: File written by ``specdraft tune``.
        module: The loaded checkpoint.
        checkpoint: Its path.
        params: How tokens are drawn.
    """
    drafter_dtype = next(module.drafter.parameters()).dtype
    here = MadeFor.of(module.target.device, module.target.dtype, drafter_dtype, checkpoint, digest(checkpoint), params)
    return load_policy(path, here, params.temperature, module.drafter.block_size)


def generate(
    checkpoint: str,
    prompt: str,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    block_size: int | None = None,
    policy: str | None = None,
    workload: str = "",
    seed: int = 0,
    device: str = "auto",
    color: bool | None = None,
    target: str | None = None,
    confidence_threshold: float = 0.0,
    drafter_dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    template_options: dict[str, Any] | None = None,
) -> None:
    """Answer a prompt with speculative decoding and show what was accepted.

    Args:
        checkpoint: Checkpoint written by ``specdraft fit``, or exported folder.
        prompt: What the user says; the target's chat template is applied.
        max_new_tokens: Tokens at most.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus of the target's distribution.
        top_k: Candidates of the target's distribution; 0 keeps all.
        block_size: Block size up to the trained one; null is the trained one.
        policy: File written by ``specdraft tune``, which chooses the block size of each round.
        workload: Kind of the prompt (``family`` of the rows that were tuned on) that the policy chooses by; empty takes
            what it says of all together.
        seed: Seed of the sampling.
        device: auto, cpu or cuda.
        color: Colour the accepted tokens; null colours on a terminal.
        target: Target by name or folder, such as one that has moved; null takes the one that the checkpoint names.
        confidence_threshold: Verify drafts only while the product of their confidences is at least this; 0 verifies
            all. Needs a corrector with confidences.
        drafter_dtype: Type of drafter and corrector; auto is the target's.
        template_options: Further variables of the chat template, as in training, such as {"enable_thinking": false}.
    """
    module = load_module(checkpoint, device, target, drafter_dtype)
    model = module.target
    ids = encode_prompt(model.tokenizer, prompt, template_options)
    request = Request(ids, max_new_tokens, model.stop_token_ids, workload)
    params = SamplingParams(temperature, top_p, top_k)
    generator = torch.Generator(device=model.device).manual_seed(seed)
    baseline = autoregressive_decode(model, [request], params=params, concurrency=1, generator=generator)
    drafted = speculative_decode(
        model,
        module.drafter,
        with_threshold(module.corrector, confidence_threshold),
        module.draft_head,
        [request],
        mask_token_id=model.spec.mask_token_id,
        params=params,
        concurrency=1,
        block_size=block_size,
        policy=None if policy is None else open_policy(policy, module, checkpoint, params),
        generator=generator,
    )
    answer = drafted.results[0]
    colored = sys.stdout.isatty() if color is None else color
    print(_colored(model.tokenizer, answer, colored))
    print(_statistics(answer, baseline, drafted, temperature))


def encode_prompt(tokenizer: Any, prompt: str, options: dict[str, Any] | None = None) -> list[int]:
    """Tokens of a user's message in the tokenizer's chat template, up to where the answer starts.

    Raises:
        ValueError: If the prompt is empty.
    """
    if not prompt.strip():
        raise ValueError("the prompt is empty")
    return encode_messages(tokenizer, [{"role": "user", "content": prompt}], options)


def encode_messages(tokenizer: Any, messages: list[dict[str, Any]], options: dict[str, Any] | None = None) -> list[int]:
    """Tokens of a conversation up to where the next answer starts; plain text where there is no chat template.

    Args:
        tokenizer: A tokenizer of transformers.
        messages: The conversation.
        options: Further variables of the chat template, such as ``enable_thinking``.
    """
    if tokenizer.chat_template is None:
        return list(tokenizer("\n".join(message["content"] for message in messages))["input_ids"])
    found = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, **(options or {}))
    return list(found["input_ids"])


def _colored(tokenizer: Any, answer: RequestResult, colored: bool) -> str:
    text = []
    for drafts, own in token_groups(answer.tokens, answer.accepted):
        accepted = tokenizer.decode(drafts, skip_special_tokens=True)
        text.append(f"{GREEN}{accepted}{RESET}" if colored and accepted else accepted)
        text.append(tokenizer.decode(own, skip_special_tokens=True))
    return "".join(text)


def _statistics(answer: RequestResult, baseline: DecodeResult, drafted: DecodeResult, temperature: float) -> str:
    same = ""
    if temperature == 0:
        same = ", output equal to AR" if baseline.results[0].tokens == answer.tokens else ", output DIFFERS from AR"
    sizes = Counter(entry.block_size for entry in drafted.log)
    ms = {k: 1e3 * v / max(drafted.steps, 1) for k, v in asdict(drafted.timing).items()}
    return "\n".join(
        [
            "",
            f"{len(answer.tokens)} tokens in {drafted.rounds} rounds: MAT {drafted.mat:.2f} (bonus counted){same}",
            f"accepted per round: {' '.join(map(str, answer.accepted))}",
            f"block size: {', '.join(f'{size} in {count} rounds' for size, count in sorted(sizes.items()))}",
            f"{drafted.tokens_per_second:.1f} tokens/s, lean AR {baseline.tokens_per_second:.1f} tokens/s "
            f"(speed-up {drafted.tokens_per_second / max(baseline.tokens_per_second, 1e-9):.2f}x, prefill apart)",
            "round, ms: " + ", ".join(f"{name} {value:.1f}" for name, value in ms.items()),
        ]
    )


def prompt_rows(prompts: str) -> list[dict[str, Any]]:
    """Rows with a text field ``prompt``, and ``turns`` where the user speaks more than once.

    Args:
        prompts: A JSONL file with ``prompt`` or ``turns``, ``embedded:train``, ``embedded:heldout``, or the name of an
            evaluation set (:data:`specdraft.data.evaluation_sets.EVALUATION_SETS`), alone or as ``name=FILE``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: Naming the line that is no such row.
    """
    if prompts.startswith("embedded:"):
        from specdraft.data.prompts import build_prompts

        return [asdict(row) for row in build_prompts(prompts.removeprefix("embedded:"))]  # type: ignore[arg-type]
    name, _, file = prompts.partition("=")
    if name in EVALUATION_SETS:
        return evaluation_rows(name, file or None)
    if not Path(prompts).is_file():
        raise FileNotFoundError(
            f"no prompts at {prompts}; name a JSONL file, embedded:heldout, embedded:train, or one of "
            f"{', '.join(EVALUATION_SETS)}"
        )
    lines = Path(prompts).read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{prompts}:{number}: broken JSON line ({error})") from error
        turns = row.get("turns") if isinstance(row, dict) else None
        if turns and isinstance(turns, list) and all(isinstance(turn, str) for turn in turns):
            row = {"prompt": turns[0], **row}
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise ValueError(f"{prompts}:{number}: a row needs a text field 'prompt', or 'turns', a list of texts")
        rows.append(row)
    return rows


def whole_lines(part: Path) -> list[str]:
    """Lines already written; a last line without its end is cut off, so that it is written anew."""
    if not part.exists():
        return []
    content = part.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(part, len(whole))  # nothing whole is written again, so that nothing can be lost
    return [line for line in whole.decode("utf-8").split("\n") if line]
