"""What a measurement starts from: checkpoints, prompts, and ways to decode them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdraft.bench.cells import Decode
from specdraft.bench.turns import requests_of
from specdraft.checkpoints import digest
from specdraft.commands import load_module, prompt_rows
from specdraft.data.selection import dealt
from specdraft.decoding import (
    BlockPolicy,
    DecodeResult,
    FixedBlock,
    OnFinish,
    Request,
    SamplingParams,
    autoregressive_decode,
    check_requests,
    speculative_decode,
)
from specdraft.decoding.policy_file import device_name
from specdraft.module import DraftingModule
from specdraft.packing import packed_from_rows


@dataclass
class Setup:
    """Checkpoints of one target and the prompts that they decode.

    Attributes:
        modules: Loaded checkpoints by path.
        labels: Short names by path.
        requests: One per prompt; the workload is the family.
        settings: How tokens are drawn, one per temperature.
        facts: What the results depend on, as builtins.
    """

    modules: dict[str, DraftingModule]
    labels: dict[str, str]
    requests: list[Request]
    settings: list[SamplingParams]
    facts: dict[str, Any]

    @property
    def target(self) -> Any:
        """The target that all checkpoints share."""
        return next(iter(self.modules.values())).target

    @property
    def families(self) -> list[str]:
        """Family of each prompt."""
        return [request.workload for request in self.requests]


def prepare(
    checkpoint: list[str],
    prompts: str,
    *,
    temperature: list[float] | None,
    top_p: float,
    top_k: int,
    max_new_tokens: int,
    num_prompts: int | None,
    drafter_dtype: str,
    device: str,
    seed: int,
    target: str | None = None,
    rows: list[dict[str, Any]] | None = None,
    concurrency: int = 1,
    check_rows: Callable[[int], None] = lambda _: None,
    template_options: dict[str, Any] | None = None,
) -> Setup:
    """Load checkpoints and prompts.

    Args:
        checkpoint: Checkpoints for the same target.
        prompts: What :func:`specdraft.commands.prompt_rows` reads; with ``rows`` only their name.
        temperature: Sampling temperatures; None is 0.
        top_p: Nucleus of the target's distribution.
        top_k: Candidates of the target's distribution.
        max_new_tokens: Tokens per prompt at most.
        num_prompts: Prompts, dealt over the families; None takes all.
        drafter_dtype: Type of drafter and corrector; auto is the target's.
        device: auto, cpu or cuda.
        seed: Seed of the sampling.
        target: Target by name or folder, such as one that has moved; None takes the one that the checkpoints name.
        rows: Rows with ``prompt``, in place of those of ``prompts``.
        concurrency: Requests in flight while the answers before later turns are decoded.
        check_rows: Called with the number of prompts before anything is loaded, to refuse it early.
        template_options: Further variables of the chat template.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If an option is out of range, there are no prompts, a prompt does not fit into the target's context,
            or the checkpoints do not belong together.
    """
    temperatures = [0.0] if temperature is None else temperature
    settings = [SamplingParams(value, top_p, top_k) for value in temperatures]
    if not settings or len(set(temperatures)) != len(temperatures):
        raise ValueError(f"temperature {temperatures} must name at least one value, each once")
    if max_new_tokens < 2:
        raise ValueError(f"max_new_tokens must be at least 2, got {max_new_tokens}: the first token is the prefill's")
    rows = _chosen(prompt_rows(prompts) if rows is None else rows, num_prompts, prompts)
    check_rows(len(rows))
    modules = _load(checkpoint, device, drafter_dtype, target)
    labels = dict(zip(modules, _labels(list(modules)), strict=True))
    model = next(iter(modules.values())).target
    requests = requests_of(model, rows, max_new_tokens, concurrency, template_options)
    check_requests(requests, model.spec)
    facts = {
        "target": model.spec.name,
        "target_dtype": str(model.dtype).removeprefix("torch."),
        "drafter_dtype": {labels[path]: _dtype_name(module) for path, module in modules.items()},
        "device": str(model.device),
        "device_name": device_name(model.device),
        "threads": torch.get_num_threads(),
        "packed_from_rows": packed_from_rows(),
        "prompts": prompts,
        "num_prompts": len(requests),
        "max_new_tokens": max_new_tokens,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        **({"template_options": template_options} if template_options else {}),
        "checkpoints": {path: digest(path) for path in modules},
        "requests": hashlib.sha256(repr([list(r.prompt_ids) for r in requests]).encode()).hexdigest()[:16],
    }
    return Setup(modules, labels, requests, settings, facts)


def autoregressive(target: Any, params: SamplingParams, rows: int, seed: int) -> Decode:
    """How to decode without drafts; the draws of a call go on where the last ended.

    Args:
        target: The target.
        params: How tokens are drawn.
        rows: Requests in flight.
        seed: Seed of the sampling.
    """
    generator = torch.Generator(device=target.device).manual_seed(seed)

    def decode(requests: list[Request], on_finish: OnFinish) -> DecodeResult:
        return autoregressive_decode(
            target, requests, params=params, concurrency=rows, generator=generator, on_finish=on_finish
        )

    return decode


def speculative(
    module: DraftingModule, params: SamplingParams, rows: int, policy: Callable[[], BlockPolicy], seed: int
) -> Decode:
    """How to decode with a checkpoint; draws and policy of a call go on where the last ended.

    Args:
        module: The loaded checkpoint, in evaluation mode.
        params: How tokens are drawn.
        rows: Requests in flight.
        policy: Makes the policy.
        seed: Seed of the sampling.
    """
    generator = torch.Generator(device=module.target.device).manual_seed(seed)
    chosen = policy()

    def decode(requests: list[Request], on_finish: OnFinish) -> DecodeResult:
        return speculative_decode(
            module.target,
            module.drafter,
            module.corrector,
            module.draft_head,
            requests,
            mask_token_id=module.target.spec.mask_token_id,
            params=params,
            concurrency=rows,
            policy=chosen,
            generator=generator,
            on_finish=on_finish,
        )

    return decode


def fixed(block: int) -> Callable[[], BlockPolicy]:
    """Makes the policy that always takes one block size."""
    return lambda: FixedBlock(block)


def _load(paths: list[str], device: str, dtype: str, target: str | None) -> dict[str, DraftingModule]:
    """Modules by path; those with equal specs share one target."""
    if not paths or len(set(paths)) != len(paths):
        raise ValueError(f"checkpoint {paths} must name at least one file, each once")
    modules: dict[str, DraftingModule] = {}
    for path in paths:
        module = load_module(path, device, target, dtype)
        first = next(iter(modules.values()), module)
        if module.target.spec.name != first.target.spec.name or module.target.dtype != first.target.dtype:
            raise ValueError(
                f"{path} was made for {module.target.spec.name!r} in {module.target.dtype}, but {paths[0]} for "
                f"{first.target.spec.name!r} in {first.target.dtype}; measure them in separate runs"
            )
        if module.target.spec == first.target.spec:
            module.target = first.target
        modules[path] = module
    return modules


def check_blocks(path: str, module: DraftingModule, sizes: list[int]) -> list[int]:
    """The sizes, if the drafter takes all of them.

    Raises:
        ValueError: Naming the one that does not fit and what the drafter takes.
    """
    own, low = module.drafter.block_size, module.drafter.first_slot + 1
    for size in sizes:
        if not low <= size <= own:
            raise ValueError(f"block size {size} does not fit {path}, whose drafter takes {low}..{own}")
    return sizes


def numbers(name: str, values: list[int] | None, default: list[int]) -> list[int]:
    """Values of an option, or its default.

    Raises:
        ValueError: If there are none, or one is below 1 or named twice.
    """
    values = default if values is None else values
    if not values or min(values) < 1 or len(set(values)) != len(values):
        raise ValueError(f"{name} {values} must be at least one number, each at least 1 and named once")
    return values


def _chosen(rows: list[dict[str, Any]], count: int | None, name: str) -> list[dict[str, Any]]:
    """``count`` rows, dealt over the families."""
    if not rows:
        raise ValueError(f"{name} holds no prompts; give at least one row")
    if count is None:
        return rows
    if not 1 <= count <= len(rows):
        raise ValueError(f"num_prompts {count} must be in 1..{len(rows)}, the prompts of {name}")
    return dealt(rows, [row.get("family") or "" for row in rows], count)


def _labels(paths: list[str]) -> list[str]:
    """Short unique names: ``runs/quickstart/version_0/checkpoints/best.ckpt`` is ``quickstart/best``."""
    short = []
    for path in paths:
        parts = Path(path).with_suffix("").parts
        kept = [part for part in parts if part != "checkpoints" and not part.startswith("version_")]
        short.append("/".join(kept[-2:]))
    return short if len(set(short)) == len(short) else list(paths)


def _dtype_name(module: DraftingModule) -> str:
    return str(next(module.drafter.parameters()).dtype).removeprefix("torch.")
