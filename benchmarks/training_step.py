"""Time and extra peak memory of a training step against the naive one, which holds all logits (D1c).

    python benchmarks/training_step.py

Shapes of SmolLM2-135M with random features: 2 draft layers, 4 conversations of 300 tokens, 32 anchors, blocks of 8,
the whole vocabulary. Drafter, blocks and weighting are the same; every variant runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
from measure import machine, table
from torch import Tensor
from torch.nn import functional as F

from specdraft.bench.memory import PeakMemory
from specdraft.drafters import DFlash
from specdraft.module import matmul_precision
from specdraft.objectives import Objective
from specdraft.targets import FrozenHead
from specdraft.types import BlockBatch, DraftBatch, TargetSpec

SPEC = TargetSpec("smollm2-135m-instruct", 576, 49152, 30, 9, 3, 64, 1536, max_position_embeddings=8192)


def make_batch(rows: int, length: int) -> DraftBatch:
    """Conversations of random tokens whose last two thirds are the assistant's."""
    ids = torch.randint(SPEC.vocab_size, (rows, length))
    where = torch.arange(length).expand(rows, length)
    features = torch.randn(rows, length, SPEC.feature_size)
    return DraftBatch(ids, where >= length // 3, torch.zeros_like(ids), where, features)


def naive_loss(hidden: Tensor, head: FrozenHead, blocks: BlockBatch, objective: Objective) -> Tensor:
    """Cross-entropy over the logits of all slots at once."""
    logits = head(hidden)
    loss = F.cross_entropy(logits.flatten(0, 2), blocks.labels.flatten(), reduction="none").view(blocks.labels.shape)
    weights = objective.weighting.weights(blocks, None)  # type: ignore[arg-type]
    weights = torch.where(blocks.supervised, weights, 0.0)
    return (loss * weights).sum() / weights.sum()


def measure(variant: str, options: argparse.Namespace) -> dict[str, float]:
    torch.manual_seed(0)
    batch = make_batch(options.conversations, options.length)
    head = FrozenHead(torch.randn(SPEC.vocab_size, SPEC.hidden_size).mul_(0.05))
    embedding = head.weight
    drafter = DFlash(SPEC, num_layers=2, block_size=8, tap_norm=True)
    objective = Objective(num_anchors=options.anchors)
    blocks = objective.blocks(batch, block_size=8, first_slot=1, mask_token_id=0, generator=torch.Generator())
    assert batch.features is not None

    def step() -> float:
        drafter.zero_grad()
        with matmul_precision(options.precision):
            slots = (blocks.anchors, blocks.slots, batch.document_ids, batch.position_ids)
            hidden = drafter(batch.features, embedding[blocks.tokens], *slots)
            if variant == "naive":
                loss = naive_loss(hidden, head, blocks, objective)
            else:
                loss = objective(hidden, blocks, head, None, head).loss
            loss.backward()
        return loss.item()

    # the drafter's own memory comes first, so that the extra memory is that of the step
    for parameter in drafter.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with PeakMemory(torch.device("cpu")) as resting:
        pass
    with PeakMemory(torch.device("cpu")) as peak:
        loss = step()
    seconds = []
    for _ in range(options.steps):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    assert peak.mib is not None
    assert resting.mib is not None
    return {"seconds": statistics.median(seconds), "extra_mib": peak.mib - resting.mib, "loss": loss}


def report(options: argparse.Namespace) -> list[str]:
    """Both variants in turn, each in processes of its own."""
    flags = [
        text
        for key in ("conversations", "length", "anchors", "steps")
        for text in (f"--{key}", str(getattr(options, key)))
    ]
    flags += ["--precision", options.precision]
    found: dict[str, dict[str, float]] = {}
    for _ in range(options.repeats):
        for variant in ("naive", "specdraft"):
            command = [sys.executable, __file__, "--child", variant, *flags]
            out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            if variant not in found or out["seconds"] < found[variant]["seconds"]:
                found[variant] = out
    base = found["naive"]
    rows = [
        [
            name,
            v["seconds"],
            v["extra_mib"],
            v["loss"],
            base["seconds"] / v["seconds"],
            v["extra_mib"] / base["extra_mib"],
        ]
        for name, v in found.items()
    ]
    title = (
        f"### Training step: {options.conversations} conversations of {options.length} tokens, "
        f"{options.anchors} anchors, B=8, precision {options.precision}"
    )
    return [title, "", *table(["step", "s", "extra MiB", "loss", "speed-up", "memory"], rows)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--anchors", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--precision", default="highest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--child", choices=["naive", "specdraft"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options)))
        return
    print(machine(), "", *report(options), sep="\n")


if __name__ == "__main__":
    main()
