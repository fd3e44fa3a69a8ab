"""The command ``specdraft tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from specdraft.bench.journal import Journal
from specdraft.bench.setup import check_blocks, numbers, prepare
from specdraft.callbacks.provenance import provenance
from specdraft.decoding import MadeFor, PolicyFile, RunningSurvival, SamplingParams, StaticTable
from specdraft.tune.candidates import Candidate, choose_candidate, depth_of, measure_candidate
from specdraft.tune.check import Check, check_run
from specdraft.tune.measuring import Meter
from specdraft.tune.report import choices_table, write_reports


def tune(
    checkpoint: list[str],
    out: str,
    prompts: str = "embedded:heldout",
    block_sizes: list[int] | None = None,
    concurrency: list[int] | None = None,
    temperature: list[float] | None = None,
    top_p: float = 1.0,
    top_k: int = 0,
    max_new_tokens: int = 64,
    num_prompts: int | None = None,
    remeasure: bool = False,
    adaptive: bool = False,
    check: bool = True,
    all_checkpoints: bool = False,
    repeats: int = 3,
    resume: bool = False,
    drafter_dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    device: str = "auto",
    seed: int = 0,
    target: str | None = None,
    template_options: dict[str, Any] | None = None,
) -> None:
    """Find the fastest block size for every workload and concurrency on this machine, and write it as a policy.

    Throughput is MAT over round latency. Survival is measured once per workload (= family of prompts), latency once
    per block size and concurrency; their combinations are predicted, and a check run measures how true that was.
    Beside the policy a folder ``<name>-tune`` holds ``tune.json``, ``tune.md``, ``tune.png`` and the journal of the
    measurements. ``generate``, ``bench`` and the callback ``SpeculativeDecoding`` take the policy.

    Args:
        checkpoint: Checkpoints written by ``specdraft fit``, or exported folders; of several, drafters of different
            depth say, the fastest.
        out: Policy to write, a YAML file.
        prompts: JSONL file with ``prompt`` (and ``family``), or ``embedded:heldout`` / ``embedded:train``.
        block_sizes: Block sizes up to the trained one; null is its quarters.
        concurrency: Numbers of requests in flight; null is 1 2 4 8.
        temperature: Sampling temperatures; null is 0, greedy.
        top_p: Nucleus of the target's distribution.
        top_k: Candidates of the target's distribution; 0 keeps all.
        max_new_tokens: Tokens per prompt at most.
        num_prompts: Prompts to decode, dealt evenly over the families of the file; null takes all.
        remeasure: Measure survival at every block size, even if mixed horizons were trained.
        adaptive: Let the policy estimate survival while it decodes (``RunningSurvival``), not look it up.
        check: Measure all block sizes and both policies; false only predicts.
        all_checkpoints: Measure all checkpoints, not only those that the search over depths asks for.
        repeats: Decodes per latency; their median counts.
        resume: Continue an interrupted run.
        drafter_dtype: Type of drafter and corrector while decoding; auto is the target's.
        device: auto, cpu or cuda.
        seed: Seed of the sampling.
        target: Target by name or folder, such as one that has moved; null takes the one that the checkpoints name.
        template_options: Further variables of the chat template, as in training, such as {"enable_thinking": false}.
    """
    levels = sorted(numbers("concurrency", concurrency, [1, 2, 4, 8]))
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    path = Path(out)
    if path.is_dir():
        raise ValueError(f"out {out} is a folder; name the YAML file to write")
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
        target=target,
        template_options=template_options,
    )
    for name, module in setup.modules.items():
        check_blocks(name, module, block_sizes or [])
    folder = path.with_name(f"{path.stem}-tune")
    options = {"block_sizes": block_sizes, "concurrency": levels, "repeats": repeats, "remeasure": remeasure}
    journal = Journal(folder / "requests.jsonl", {**setup.facts, **options}, resume)
    order = sorted(setup.modules, key=lambda name: depth_of(setup.modules[name]))

    def meters(name: str) -> list[Meter]:
        return [Meter(setup, name, params, journal, seed) for params in setup.settings]

    def measure(index: int) -> Candidate:
        found = measure_candidate(meters(order[index]), block_sizes, levels, repeats, remeasure)
        print(f"{setup.labels[found.path]}, depth {found.depth}: {found.score:.1f} tokens/s predicted", flush=True)
        return found

    try:
        depths = [depth_of(setup.modules[name]) for name in order]
        candidates = choose_candidate(depths, measure, all_checkpoints)
        best = candidates[0]
        module = setup.modules[best.path]
        drafter_type = next(module.drafter.parameters()).dtype
        types = (setup.target.dtype, drafter_type)
        digest, drawn = setup.facts["checkpoints"][best.path], SamplingParams(top_p=top_p, top_k=top_k)
        made_for = MadeFor.of(setup.target.device, *types, best.path, digest, drawn)
        policy = StaticTable if not adaptive else RunningSurvival
        PolicyFile(policy.__name__, made_for, best.tables).write(path)
        print(f"{choices_table(best)}\nwrote {path}", flush=True)
        checks: list[Check] = []
        if check:
            per_temperature = zip(meters(best.path), best.tables, best.grids, best.plain, strict=True)
            for meter, tables, grid, plain in per_temperature:
                checks.append(check_run(meter, tables, grid, levels, plain))
    except KeyboardInterrupt:
        print(f"\ninterrupted; what was measured is in {folder / 'requests.jsonl'}, go on with --resume")
        raise
    facts: dict[str, Any] = {**setup.facts, **options, **provenance(), "device_name": made_for.device}
    print(write_reports(folder, candidates, setup.labels, checks, facts))
