"""``specdraft estimate``: what a run will take, before anything is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from specdraft.data import ChatDataModule
from specdraft.estimate.plan import TrainerFacts, option, plan
from specdraft.estimate.report import devices, report
from specdraft.module import DraftingModule

Configured = Callable[[Sequence[str]], tuple[DraftingModule, ChatDataModule, Any]]


def estimate(words: Sequence[str], configured: Configured) -> None:
    """Print parameters, memory, work and time of a training step.

    Args:
        words: Options of :func:`_options`, and those of ``specdraft fit``, a ``--config`` at least.
        configured: Makes model and data of the options of ``fit``, and gives those of the trainer.

    Raises:
        FileNotFoundError: If the target's configuration is not found.
        ValueError: If an option is unknown or out of range, or the size of a batch depends on the data.
    """
    options, rest = _options().parse_known_args(list(words))
    known = devices()
    device = (options.device or "").lower()
    if device and device not in known:
        raise ValueError(f"device {options.device!r} is unknown; use one of {', '.join(known)}, or give --tflops")
    if not 0 < options.utilization <= 1:
        raise ValueError(f"utilization must be in (0, 1], got {options.utilization}")
    facts = known.get(device, {})
    module, data, trainer = configured([*rest, *(f"--{word}" for word in options.set)])
    found = plan(module, data, trainer_facts(trainer), device=options.kernels, rows=options.rows)
    print(report(found, options.tflops or facts.get("tflops"), options.utilization, facts.get("memory")))


def trainer_facts(options: Any) -> TrainerFacts:
    """What matters of the trainer's options, as the run's configuration has them."""
    ranks = option(options.devices, 1) * option(options.num_nodes, 1)
    strategy: Any = options.strategy if isinstance(options.strategy, str) else options.strategy.class_path
    return TrainerFacts(
        precision=str(options.precision or "32-true"),
        ranks=ranks,
        accumulate=option(options.accumulate_grad_batches, 1),
        max_epochs=option(options.max_epochs, -1),
        max_steps=option(options.max_steps, -1),
        strategy="fsdp" if "FullySharded" in strategy else strategy,
    )


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "specdraft estimate",
        description="Print parameters, memory, work and time of a training step. Neither weights nor data are read: a "
        "configuration of the target suffices (Qwen/Qwen3-4B and Qwen/Qwen3-8B are packaged, others come from a folder "
        "with config.json or the local cache).",
        epilog="All other options are those of `specdraft fit`: --config FILE, and changes as --trainer.devices=4.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="OPTION",
        help="options of fit without their hyphens, such as model.drafter.init_args.num_layers=3",
    )
    parser.add_argument("--device", help="device with a known peak: a100, h100, h200, b200, l40s, rtx4090")
    parser.add_argument("--tflops", type=float, help="peak TFLOP/s of any other device; gives times")
    parser.add_argument(
        "--utilization", type=float, default=0.4, help="share of the peak that training reaches, default: 0.4"
    )
    parser.add_argument("--rows", type=int, help="conversations of an epoch; gives steps and time of an epoch")
    parser.add_argument(
        "--kernels", default="cuda", choices=["cuda", "cpu"], help="whose attention and chunk sizes, default: cuda"
    )
    return parser
