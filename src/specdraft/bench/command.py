"""The command ``specdraft bench``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from specdraft.bench.cells import AR, HF, Cell, Decode, Measurement, summary
from specdraft.bench.hf_generate import HFGenerate
from specdraft.bench.journal import Journal
from specdraft.bench.profile import write_trace
from specdraft.bench.report import line, write_reports
from specdraft.bench.setup import Setup, autoregressive, check_blocks, fixed, measured, numbers, prepare, speculative
from specdraft.callbacks.provenance import provenance
from specdraft.commands import open_policy
from specdraft.decoding import BlockPolicy, PolicyFile, SamplingParams

# a way to decode: block size, name of the policy that chooses it, and what makes the policy
Choice = tuple[int, str | None, Callable[[], BlockPolicy]]


def bench(
    checkpoint: list[str],
    prompts: str = "embedded:heldout",
    concurrency: list[int] | None = None,
    block_sizes: list[int] | None = None,
    temperature: list[float] | None = None,
    top_p: float = 1.0,
    top_k: int = 0,
    max_new_tokens: int = 128,
    num_prompts: int | None = None,
    policy: str | None = None,
    baseline: Literal["none", "hf-generate"] = "none",
    out: str = "runs/bench",
    resume: bool = False,
    profile: bool = False,
    drafter_dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    device: str = "auto",
    seed: int = 0,
) -> None:
    """Measure checkpoints against the lean autoregressive loop: MAT, tokens/s, latencies, memory, losslessness.

    A cell is a checkpoint, block size, concurrency and temperature; all decode the same prompts, and a row that
    ends is refilled from the queue. Writes ``bench.json``, ``bench.md``, ``bench.png`` and, while it runs,
    ``requests.jsonl`` with a line per finished prompt.

    Args:
        checkpoint: Checkpoints written by ``specdraft fit``, all for the same target.
        prompts: JSONL file with ``prompt`` (and ``family``), or ``embedded:heldout`` / ``embedded:train``.
        concurrency: Numbers of requests in flight; null is 1 2 4 8.
        block_sizes: Block sizes up to the trained one; null is each checkpoint's own.
        temperature: Sampling temperatures; null is 0, greedy.
        top_p: Nucleus of the target's distribution.
        top_k: Candidates of the target's distribution; 0 keeps all.
        max_new_tokens: Tokens per prompt at most.
        num_prompts: Prompts to decode, dealt evenly over the families of the file; null takes all.
        policy: File written by ``specdraft tune``; measured besides the block sizes.
        baseline: Measure transformers.generate as well.
        out: Folder to write.
        resume: Continue the interrupted run in ``out``.
        profile: Also write a trace of a short decode per checkpoint, and print the share of each part.
        drafter_dtype: Type of drafter and corrector while decoding; auto is the target's.
        device: auto, cpu or cuda.
        seed: Seed of the sampling.
    """
    levels = numbers("concurrency", concurrency, [1, 2, 4, 8])
    if policy is not None:
        PolicyFile.read(policy)  # refused before anything is loaded

    def enough(rows: int) -> None:
        if max(levels) > rows:
            raise ValueError(
                f"concurrency {max(levels)} needs at least as many prompts, but there are {rows}; "
                "give more prompts or a lower concurrency"
            )

    setup = prepare(
        checkpoint,
        prompts,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        num_prompts=num_prompts,
        drafter_dtype=drafter_dtype,
        device=device,
        seed=seed,
        check_rows=enough,
    )
    blocks = {}
    for path, module in setup.modules.items():
        blocks[path] = check_blocks(path, module, numbers("block_sizes", block_sizes, [module.drafter.block_size]))
        for params in setup.settings if policy is not None else []:
            check_blocks(path, module, list(PolicyFile.read(str(policy)).make(params.temperature).sizes))
    facts = setup.facts if policy is None else {**setup.facts, "policy": Path(policy).read_text(encoding="utf-8")}
    folder = Path(out)
    journal = Journal(folder / "requests.jsonl", facts, resume)
    found: list[dict[str, Any]] = []
    try:
        for params in setup.settings:
            baselines: dict[int, Measurement] = {}
            for cell, decode in _cells(setup, blocks, levels, params, policy, baseline, seed):
                run = measured(cell, decode, setup.requests, journal, setup.target.device)
                if cell.method == AR:
                    baselines[cell.concurrency] = run
                found.append(summary(run, baselines[cell.concurrency], setup.families))
                print(line(found[-1]), flush=True)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the finished prompts are in {folder / 'requests.jsonl'}, go on with --resume")
        raise
    print(write_reports(folder, found, {**facts, **provenance()}))
    if profile:
        _profile(setup, blocks, found, levels[0], seed, folder)


def _cells(
    setup: Setup,
    blocks: dict[str, list[int]],
    levels: list[int],
    params: SamplingParams,
    policy: str | None,
    baseline: str,
    seed: int,
) -> Iterator[tuple[Cell, Decode]]:
    """All cells of one temperature; the lean autoregressive loop first, since the others are compared with it."""
    target = setup.target
    for rows in levels:
        yield Cell(AR, rows, params.temperature), autoregressive(target, params, rows, seed)
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
    for path, module in setup.modules.items():
        choices: list[Choice] = [(block, None, fixed(block)) for block in blocks[path]]
        if policy is not None:
            chosen = open_policy(policy, module, path, params.temperature)
            make = partial(PolicyFile.read(policy).make, params.temperature)
            choices.append((max(chosen.sizes), Path(policy).name, make))
        for block, name, maker in choices:
            for rows in levels:
                cell = Cell(setup.labels[path], rows, params.temperature, block, path, name)
                yield cell, speculative(module, params, rows, maker, seed)


def _profile(
    setup: Setup,
    blocks: dict[str, list[int]],
    found: list[dict[str, Any]],
    rows: int,
    seed: int,
    folder: Path,
) -> None:
    params = setup.settings[0]
    for path, module in setup.modules.items():
        for block in blocks[path]:
            cell = Cell(setup.labels[path], rows, params.temperature, block, path)
            decode = speculative(module, params, rows, fixed(block), seed)
            record = next(r for r in found if Cell(**{k: r[k] for k in cell.__dataclass_fields__}) == cell)
            print(write_trace(cell, decode, setup.requests[:rows], record["round_ms"], folder))
