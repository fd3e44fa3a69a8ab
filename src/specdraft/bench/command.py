"""The command ``specdraft bench``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from specdraft.bench.cells import AR, HF, Cell, Decode, Job, Measurement, measure, summary
from specdraft.bench.hf_generate import HFGenerate
from specdraft.bench.journal import Journal
from specdraft.bench.profile import write_trace
from specdraft.bench.report import line, template, write_reports
from specdraft.bench.setup import Setup, autoregressive, check_blocks, fixed, numbers, prepare, speculative
from specdraft.bench.suite import PAPER_TOKENS, suite_rows, write_paper_table
from specdraft.callbacks.provenance import provenance
from specdraft.commands import open_policy
from specdraft.decoding import BlockPolicy, DecodeResult, OnFinish, PolicyFile, Request, SamplingParams

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
    max_new_tokens: int | None = None,
    num_prompts: int | None = None,
    policy: str | None = None,
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
    template_options: dict[str, Any] | None = None,
) -> None:
    """Measure checkpoints against the lean autoregressive loop: MAT, tokens/s, latencies, memory, losslessness.

    A cell is a checkpoint, block size, concurrency and temperature; all decode the same prompts, and a row that
    ends is refilled from the queue. Cells of one concurrency take turns, so that drift favours none. Writes
    ``bench.json``, ``bench.md``, ``bench.png``, ``tensorboard`` (concurrency as the step) and, while it runs,
    ``requests.jsonl`` with a line per finished prompt.
    ``--suite paper`` adds ``paper.md``, speed-up / tau per evaluation set beside published figures.

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
        policy: File written by ``specdraft tune``; measured besides the block sizes.
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
        template_options: Further variables of the chat template, as in training, such as {"enable_thinking": false}.
    """
    paper = suite == "paper"
    levels = numbers("concurrency", concurrency, [1] if paper else [1, 2, 4, 8])
    if max_new_tokens is None:
        max_new_tokens = PAPER_TOKENS if paper else 128
    if paper and 1 not in levels:
        raise ValueError(f"the papers' table is of one request at a time; add 1 to --concurrency {levels}")
    if sets is not None and not paper:
        raise ValueError(f"sets {sets} belong to a suite; add --suite paper, or name one as --prompts")
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
        " ".join(sets or ["the paper's sets"]) if paper else prompts,
        temperature=[0.0, 1.0] if temperature is None and paper else temperature,
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        num_prompts=num_prompts,
        drafter_dtype=drafter_dtype,
        device=device,
        seed=seed,
        target=target,
        rows=suite_rows(sets) if paper else None,
        concurrency=max(levels),
        check_rows=enough,
        template_options=template_options,
    )
    blocks = {}
    for path, module in setup.modules.items():
        blocks[path] = check_blocks(path, module, numbers("block_sizes", block_sizes, [module.drafter.block_size]))
        for params in setup.settings if policy is not None else []:
            check_blocks(path, module, list(PolicyFile.read(str(policy)).make(params.temperature).sizes))
    # a size that is added to a finished run would be measured alone, against a baseline of another hour
    facts = {**setup.facts, "block_sizes": {setup.labels[path]: sizes for path, sizes in blocks.items()}}
    if policy is not None:
        facts["policy"] = Path(policy).read_text(encoding="utf-8")
    folder = Path(out)
    journal = Journal(folder / "requests.jsonl", facts, resume)
    found: list[dict[str, Any]] = []
    try:
        for params in setup.settings:
            baselines = {}
            for rows in levels:
                jobs = _jobs(setup, blocks, rows, params, policy, seed)
                runs = measure(jobs, setup.requests, journal, setup.target.device)
                baselines[rows] = runs[0]
                found += [_told(run, runs[0], setup) for run in runs]
            if baseline == HF:
                runs = _hf_runs(setup, levels, params, journal, seed)
                found += [_told(run, baselines[run.cell.concurrency], setup) for run in runs]
    except KeyboardInterrupt:
        print(f"\ninterrupted; the finished prompts are in {folder / 'requests.jsonl'}, go on with --resume")
        raise
    print(write_reports(folder, found, {**facts, **provenance()}))
    if paper:
        name, families = setup.target.spec.name, list(dict.fromkeys(setup.families))
        said = f"Own rows: {name}, at most {max_new_tokens} new tokens{template(facts)}."
        print(write_paper_table(folder, found, name, families, said))
    if profile:
        _profile(setup, blocks, found, levels[0], seed, folder)


def _jobs(
    setup: Setup,
    blocks: dict[str, list[int]],
    rows: int,
    params: SamplingParams,
    policy: str | None,
    seed: int,
) -> list[Job]:
    """All cells of one concurrency and temperature; first the autoregressive loop that the others are compared with."""
    target, temperature = setup.target, params.temperature
    jobs = [Job(Cell(AR, rows, temperature), partial(autoregressive, target, params, rows, seed))]
    for path, module in setup.modules.items():
        choices: list[Choice] = [(block, None, fixed(block)) for block in blocks[path]]
        if policy is not None:
            chosen = open_policy(policy, module, path, params)
            make = partial(PolicyFile.read(policy).make, temperature)
            choices.append((max(chosen.sizes), Path(policy).name, make))
        for block, name, maker in choices:
            cell = Cell(setup.labels[path], rows, temperature, block, path, name)
            jobs.append(Job(cell, partial(speculative, module, params, rows, maker, seed)))
    return jobs


def _hf_runs(setup: Setup, levels: list[int], params: SamplingParams, journal: Journal, seed: int) -> list[Measurement]:
    """Cells of ``transformers.generate``, by themselves: its second copy of the target would count in all memory."""
    target = setup.target
    model = HFGenerate(target.spec.name, target.dtype, target.device)
    runs = []
    for rows in levels:
        job = Job(Cell(HF, rows, params.temperature), partial(_generating, model, params, rows, seed))
        runs += measure([job], setup.requests, journal, target.device)
    return runs


def _generating(model: HFGenerate, params: SamplingParams, rows: int, seed: int) -> Decode:
    def decode(requests: list[Request], on_finish: OnFinish) -> DecodeResult:
        return model.decode(requests, params=params, concurrency=rows, seed=seed, on_finish=on_finish)

    return decode


def _told(run: Measurement, reference: Measurement, setup: Setup) -> dict[str, Any]:
    """What is reported of a cell, after a line of it is printed."""
    record = summary(run, reference, setup.families)
    print(line(record), flush=True)
    return record


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
