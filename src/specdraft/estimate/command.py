"""``specdraft estimate``: what a run will take, before anything is loaded."""

from __future__ import annotations

from typing import Any

from specdraft.data import ChatDataModule
from specdraft.estimate.plan import TrainerFacts, option, plan
from specdraft.estimate.report import devices, report
from specdraft.module import DraftingModule


def estimate(
    configs: list[str],
    set: list[str] | None = None,
    device: str | None = None,
    tflops: float | None = None,
    utilization: float = 0.4,
    rows: int | None = None,
    kernels: str = "cuda",
) -> None:
    """Print parameters, memory, work and time of a training step.

    Neither weights nor data are read: a configuration of the target suffices (Qwen/Qwen3-4B and Qwen/Qwen3-8B are
    packaged, others come from a folder with config.json or the local cache).

    Args:
        configs: Configs of the run, as for fit (also --config).
        set: Further options of fit, such as model.drafter.init_args.num_layers=3.
        device: Name of a device with a known peak: a100, h100, h200, b200, l40s, rtx4090.
        tflops: Peak TFLOP/s of any other device; gives times.
        utilization: Share of the peak that training reaches.
        rows: Conversations of an epoch; gives steps and time of an epoch.
        kernels: cuda or cpu, whose attention and chunk sizes are used.
    """
    known = devices()
    if device is not None and device.lower() not in known:
        raise ValueError(f"device {device!r} is unknown; use one of {', '.join(known)}, or give --tflops")
    if kernels not in ("cuda", "cpu"):
        raise ValueError(f"kernels {kernels!r} is unknown; use cuda or cpu")
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization must be in (0, 1], got {utilization}")
    facts = known.get((device or "").lower(), {})
    words = [word for path in configs for word in ("--config", path)] + [f"--{word}" for word in set or []]
    module, data, trainer = instantiate(words)
    found = plan(module, data, trainer, device=kernels, rows=rows)
    print(report(found, tflops or facts.get("tflops"), utilization, facts.get("memory")))


def instantiate(words: list[str]) -> tuple[DraftingModule, ChatDataModule, TrainerFacts]:
    """Module, data module and trainer options of a run; the trainer itself is not made.

    Args:
        words: Words of the command line behind ``fit``.
    """
    from specdraft.cli import ConfiguredRun  # the command line imports this module

    run = ConfiguredRun(words)
    options = run.config.fit.trainer
    ranks = option(options.devices, 1) * option(options.num_nodes, 1)
    strategy: Any = options.strategy if isinstance(options.strategy, str) else options.strategy.class_path
    facts = TrainerFacts(
        precision=str(options.precision or "32-true"),
        ranks=ranks,
        accumulate=option(options.accumulate_grad_batches, 1),
        max_epochs=option(options.max_epochs, -1),
        max_steps=option(options.max_steps, -1),
        strategy="fsdp" if "FullySharded" in strategy else strategy,
    )
    return run.model, run.datamodule, facts
