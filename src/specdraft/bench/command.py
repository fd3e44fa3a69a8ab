"""The command ``specdraft bench``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from specdraft.bench.cells import AR, HF, Cell, Decode, Measurement, measure, summary
from specdraft.bench.hf_generate import HFGenerate
from specdraft.bench.journal import Journal
from specdraft.bench.profile import write_trace
from specdraft.bench.report import line, write_reports
from specdraft.bench.suite import PAPER_TOKENS, suite_rows, write_paper_table
from specdraft.bench.turns import requests_of
from specdraft.callbacks.provenance import provenance
from specdraft.checkpoints import digest
from specdraft.commands import load_module, prompt_rows
from specdraft.data.selection import dealt
from specdraft.decoding import (
    DecodeResult,
    OnFinish,
    Request,
    SamplingParams,
    autoregressive_decode,
    speculative_decode,
)
from specdraft.module import DraftingModule

WARM_UP_TOKENS = 8


def bench(
    checkpoint: list[str],
    prompts: str = "embedded:heldout",
    concurrency: list[int] | None = None,
    block_sizes: list[int] | None = None,
    temperature: list[float] | None = None,
    top_p: float = 1.0,
    top_k: int = 0,
    max_new_tokens: int | None = None,
    num_prompts: int | None = None,
    suite: Literal["none", "paper"] = "none",
    sets: list[str] | None = None,
    baseline: Literal["none", "hf-generate"] = "none",
    out: str = "runs/bench",
    resume: bool = False,
    profile: bool = False,
    drafter_dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    device: str = "auto",
    seed: int = 0,
    target: str | None = None,
) -> None:
    """Measure checkpoints against the lean autoregressive loop: MAT, tokens/s, latencies, memory, losslessness.

    A cell is a checkpoint, block size, concurrency and temperature; all decode the same prompts, and a row that
    ends is refilled from the queue. Writes ``bench.json``, ``bench.md``, ``bench.png`` and, while it runs,
    ``requests.jsonl`` with a line per finished prompt. ``--suite paper`` adds ``paper.md``, speed-up / tau per
    evaluation set beside published figures.

    Args:
        checkpoint: Checkpoints written by ``specdraft fit``, or exported folders, all for the same target.
        prompts: JSONL file with ``prompt`` or ``turns`` (and ``family``), ``embedded:heldout``, ``embedded:train``, or
            an evaluation set such as gsm8k or mt-bench, alone or as gsm8k=FILE.
        concurrency: Numbers of requests in flight; null is 1 2 4 8, with the suite 1.
        block_sizes: Block sizes up to the trained one; null is each checkpoint's own.
        temperature: Sampling temperatures; null is 0, greedy, with the suite 0 1.
        top_p: Nucleus of the target's distribution.
        top_k: Candidates of the target's distribution; 0 keeps all.
        max_new_tokens: Tokens per prompt at most; null is 128, with the suite 2048.
        num_prompts: Prompts to decode, dealt evenly over the families of the file; null takes all.
        suite: Decode the evaluation sets of the papers instead of ``prompts``: paper.
        sets: Evaluation sets of the suite, alone or as name=FILE; null takes the seven of the DFlash paper.
        baseline: Measure transformers.generate as well.
        out: Folder to write.
        resume: Continue the interrupted run in ``out``.
        profile: Also write a trace of a short decode per checkpoint, and print the share of each part.
        drafter_dtype: Type of drafter and corrector while decoding; auto is the target's.
        device: auto, cpu or cuda.
        seed: Seed of the sampling.
        target: Target of exported folders, by name or folder; null takes the one that they name.
    """
    paper = suite == "paper"
    levels = _numbers("concurrency", concurrency, [1] if paper else [1, 2, 4, 8])
    temperatures = ([0.0, 1.0] if paper else [0.0]) if temperature is None else temperature
    if max_new_tokens is None:
        max_new_tokens = PAPER_TOKENS if paper else 128
    settings = [SamplingParams(value, top_p, top_k) for value in temperatures]
    if not settings or len(set(temperatures)) != len(temperatures):
        raise ValueError(f"temperature {temperatures} must name at least one value, each once")
    if max_new_tokens < 2:
        raise ValueError(f"max_new_tokens must be at least 2, got {max_new_tokens}: the first token is the prefill's")
    if sets is not None and not paper:
        raise ValueError(f"sets {sets} belong to a suite; add --suite paper, or name one as --prompts")
    prompts = " ".join(sets or ["the paper's sets"]) if paper else prompts
    rows = _chosen(suite_rows(sets) if paper else prompt_rows(prompts), num_prompts, prompts)
    if max(levels) > len(rows):
        raise ValueError(
            f"concurrency {max(levels)} needs at least as many prompts, but there are {len(rows)}; "
            "give more prompts or a lower concurrency"
        )
    modules = _load(checkpoint, device, drafter_dtype, target)
    labels = dict(zip(modules, _labels(list(modules)), strict=True))
    blocks = {path: _blocks(path, module, block_sizes) for path, module in modules.items()}
    model = next(iter(modules.values())).target
    requests, rows = requests_of(model, rows, max_new_tokens, max(levels))
    facts = {
        "target": model.spec.name,
        "target_dtype": str(model.dtype).removeprefix("torch."),
        "drafter_dtype": {labels[path]: _dtype_name(module) for path, module in modules.items()},
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "prompts": prompts,
        "num_prompts": len(rows),
        "max_new_tokens": max_new_tokens,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "checkpoints": {path: digest(path) for path in modules},
        "requests": hashlib.sha256(repr([list(r.prompt_ids) for r in requests]).encode()).hexdigest()[:16],
    }
    folder = Path(out)
    journal = Journal(folder / "requests.jsonl", facts, resume)
    families = [str(row.get("family", "all")) for row in rows]
    found: list[dict[str, Any]] = []
    try:
        for params in settings:
            baselines: dict[int, Measurement] = {}
            for cell, decode in _cells(modules, labels, blocks, levels, params, baseline, seed):
                if journal.totals(cell.key) is None:
                    _warm_up(decode, requests, cell.concurrency)
                run = measure(cell, decode, requests, journal, model.device)
                if cell.method == AR:
                    baselines[cell.concurrency] = run
                found.append(summary(run, baselines[cell.concurrency], families))
                print(line(found[-1]), flush=True)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the finished prompts are in {folder / 'requests.jsonl'}, go on with --resume")
        raise
    print(write_reports(folder, found, {**facts, **provenance()}))
    if paper:
        print(write_paper_table(folder, found, model.spec.name, list(dict.fromkeys(families))))
    if profile:
        _profile(modules, labels, blocks, found, requests, settings[0], levels[0], seed, folder)


def _cells(
    modules: dict[str, DraftingModule],
    labels: dict[str, str],
    blocks: dict[str, list[int]],
    levels: list[int],
    params: SamplingParams,
    baseline: str,
    seed: int,
) -> Iterator[tuple[Cell, Decode]]:
    """All cells of one temperature; the lean autoregressive loop first, since the others are compared with it."""
    target = next(iter(modules.values())).target
    for rows in levels:
        yield Cell(AR, rows, params.temperature), _autoregressive(target, params, rows, seed)
    if baseline == HF:
        model = HFGenerate(target.spec.name, target.dtype, target.device)
        for rows in levels:
            yield (
                Cell(HF, rows, params.temperature),
                lambda requests, on_finish, rows=rows: model.decode(  # type: ignore[misc]
                    requests, params=params, concurrency=rows, seed=seed, on_finish=on_finish
                ),
            )
        del model
    for path, module in modules.items():
        for block in blocks[path]:
            for rows in levels:
                cell = Cell(labels[path], rows, params.temperature, block, path)
                yield cell, speculative(module, params, rows, block, seed)


def _autoregressive(target: Any, params: SamplingParams, rows: int, seed: int) -> Decode:
    def decode(requests: list[Request], on_finish: OnFinish) -> DecodeResult:
        generator = torch.Generator(device=target.device).manual_seed(seed)
        return autoregressive_decode(
            target, requests, params=params, concurrency=rows, generator=generator, on_finish=on_finish
        )

    return decode


def speculative(module: DraftingModule, params: SamplingParams, rows: int, block: int, seed: int) -> Decode:
    """How to decode with a checkpoint.

    Args:
        module: The loaded checkpoint, in evaluation mode.
        params: How tokens are drawn.
        rows: Requests in flight.
        block: Block size.
        seed: Seed of the sampling.
    """

    def decode(requests: list[Request], on_finish: OnFinish) -> DecodeResult:
        generator = torch.Generator(device=module.target.device).manual_seed(seed)
        return speculative_decode(
            module.target,
            module.drafter,
            module.corrector,
            module.draft_head,
            requests,
            mask_token_id=module.target.spec.mask_token_id,
            params=params,
            concurrency=rows,
            block_size=block,
            generator=generator,
            on_finish=on_finish,
        )

    return decode


def _warm_up(decode: Decode, requests: Sequence[Request], rows: int) -> None:
    """Let weights be packed and kernels be chosen before the clock runs."""
    few = [replace(r, max_new_tokens=min(WARM_UP_TOKENS, r.max_new_tokens)) for r in requests[:rows]]
    decode(few, lambda *_: None)


def _profile(
    modules: dict[str, DraftingModule],
    labels: dict[str, str],
    blocks: dict[str, list[int]],
    found: list[dict[str, Any]],
    requests: list[Request],
    params: SamplingParams,
    rows: int,
    seed: int,
    folder: Path,
) -> None:
    for path, module in modules.items():
        for block in blocks[path]:
            cell = Cell(labels[path], rows, params.temperature, block, path)
            decode = speculative(module, params, rows, block, seed)
            record = next(r for r in found if Cell(**{k: r[k] for k in cell.__dataclass_fields__}) == cell)
            print(write_trace(cell, decode, requests[:rows], record["round_ms"], folder))


def _load(paths: list[str], device: str, dtype: str, target: str | None) -> dict[str, DraftingModule]:
    """Modules by path; those with equal specs share one target."""
    if not paths or len(set(paths)) != len(paths):
        raise ValueError(f"checkpoint {paths} must name at least one file, each once")
    modules: dict[str, DraftingModule] = {}
    for path in paths:
        module = load_module(path, device, target)
        first = next(iter(modules.values()), module)
        if module.target.spec.name != first.target.spec.name or module.target.dtype != first.target.dtype:
            raise ValueError(
                f"{path} was made for {module.target.spec.name!r} in {module.target.dtype}, but {paths[0]} for "
                f"{first.target.spec.name!r} in {first.target.dtype}; bench them in separate runs"
            )
        if module.target.spec == first.target.spec:
            module.target = first.target
        kind = module.target.dtype if dtype == "auto" else getattr(torch, dtype)
        module.drafter.to(kind)
        module.corrector.to(kind)
        modules[path] = module
    return modules


def _blocks(path: str, module: DraftingModule, block_sizes: list[int] | None) -> list[int]:
    own = module.drafter.block_size
    sizes = _numbers("block_sizes", block_sizes, [own])
    low = module.drafter.first_slot + 1
    for size in sizes:
        if not low <= size <= own:
            raise ValueError(f"block size {size} does not fit {path}, whose drafter takes {low}..{own}")
    return sizes


def _numbers(name: str, values: list[int] | None, default: list[int]) -> list[int]:
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
