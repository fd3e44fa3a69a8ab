"""An estimate as text."""

from __future__ import annotations

from importlib import resources

import yaml

from specdraft.estimate.plan import Estimate

GIB = 2**30


def devices() -> dict[str, dict[str, float]]:
    """Peak TFLOP/s and memory by name of the device."""
    return yaml.safe_load(resources.files("specdraft.estimate").joinpath("devices.yaml").read_text(encoding="utf-8"))


def report(estimate: Estimate, tflops: float | None, utilization: float, memory: float | None = None) -> str:
    """Lines for people.

    Args:
        estimate: The estimate.
        tflops: Peak TFLOP/s of a device, or None to leave out times.
        utilization: Share of the peak that training reaches.
        memory: GB of a device, to say whether the run fits.
    """
    return "\n".join([*_parameters(estimate), *_memory(estimate, memory), *_work(estimate, tflops, utilization)])


def _parameters(e: Estimate) -> list[str]:
    spec, cost = e.target.spec, e.cost
    return [
        f"target      {spec.name}: {_count(e.target.parameters)} parameters, frozen; taps {list(spec.taps)}",
        f"drafter     {cost.drafter_parameters:,} parameters",
        f"corrector   {cost.corrector_parameters:,} parameters",
        f"trainable   {cost.trainable:,}",
        f"batch       {e.shape.rows} x {e.shape.length} tokens, {e.shape.anchors} anchors each, per rank"
        f" (ranks {e.trainer.ranks}, accumulated {e.trainer.accumulate}); precision {e.trainer.precision},"
        f" kernels of {e.shape.device}",
        "",
    ]


def _memory(e: Estimate, memory: float | None) -> list[str]:
    lines = ["memory of a rank at the peak of a training step, GiB (full batch, every slot supervised)"]
    lines += [f"  {name:<26}{size / GIB:8.2f}" for name, size in e.memory.items()]
    lines += [f"  {'together':<26}{e.total / GIB:8.2f}"]
    if memory is not None:
        share = e.total / (memory * 1e9)
        words = "fits" if share < 0.9 else "is tight on" if share < 1 else "does not fit"
        lines += [f"  {words} {memory:g} GB ({share:.0%}; leave a tenth to the allocator and the device's context)"]
    return [*lines, ""]


def _work(e: Estimate, tflops: float | None, utilization: float) -> list[str]:
    lines = [
        f"work of an optimiser step of a rank: {e.flops / 1e12:.1f} TFLOP "
        f"(target forward {e.target_flops * e.trainer.accumulate / 1e12:.1f})",
        f"stored features: {e.cache_bytes_per_token:,} bytes per token",
    ]
    steps = e.steps_per_epoch()
    if e.rows is not None:
        tokens = e.rows * e.shape.length
        lines += [
            f"{e.rows:,} rows: {steps:,} steps per epoch; at most {tokens * e.cache_bytes_per_token / 1e12:.2f} TB of "
            "features if all rows are full"
        ]
    if tflops is not None:
        seconds = e.flops / (tflops * 1e12 * utilization)
        lines += [f"time of a step at {utilization:.0%} of {tflops:g} TFLOP/s: {seconds:.2f} s"]
        if steps is not None:
            hours = seconds * steps / 3600
            epochs = e.trainer.max_epochs
            whole = f", {hours * epochs:.1f} hours for {epochs} epochs" if epochs > 0 else ""
            lines += [f"time of an epoch: {hours:.1f} hours{whole}"]
        elif e.trainer.max_steps > 0:
            lines += [f"time of {e.trainer.max_steps:,} steps: {seconds * e.trainer.max_steps / 3600:.1f} hours"]
    return lines


def _count(number: int) -> str:
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"
