"""Time and extra peak memory of the frozen-head loss against the naive loss and torch's fused one.

Run ``python benchmarks/frozen_head.py``; every variant runs forward and backward once in a process of its own, whose
peak resident memory (ru_maxrss) before and after gives the extra memory. On CUDA the allocator's peak is used.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from specdraft.objectives import CrossEntropy, Prediction, TargetChunk, frozen_head_loss


class PlainHead:
    """A frozen projection without scaling."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.token_ids = weight, None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Project to logits."""
        return F.linear(hidden, self.weight)

    def to_rows(self, ids: Tensor) -> Tensor:
        """Identity: the vocabulary is whole."""
        return ids

    def to_ids(self, rows: Tensor) -> Tensor:
        """Identity: the vocabulary is whole."""
        return rows


class AutogradCrossEntropy(Prediction):
    """Cross-entropy whose gradient comes from autograd, chunk by chunk."""

    def forward(self, logits: Tensor, labels: Tensor, target: TargetChunk | None) -> Tensor:
        """Loss per position."""
        return F.cross_entropy(logits.float(), labels, reduction="none")


def naive(hidden: Tensor, head: PlainHead, rows: Tensor, chunk: int) -> Tensor:
    return F.cross_entropy(head(hidden), rows, reduction="none")


def torch_fused(hidden: Tensor, head: PlainHead, rows: Tensor, chunk: int) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(hidden, head.weight, rows, reduction="sum", options=options)


def ours(hidden: Tensor, head: PlainHead, rows: Tensor, chunk: int) -> Tensor:
    return frozen_head_loss(hidden, head, rows, CrossEntropy(), None, None, chunk or None).loss


def ours_autograd(hidden: Tensor, head: PlainHead, rows: Tensor, chunk: int) -> Tensor:
    return frozen_head_loss(hidden, head, rows, AutogradCrossEntropy(), None, None, chunk or None).loss


VARIANTS: dict[str, Callable[[Tensor, PlainHead, Tensor, int], Tensor]] = {
    "naive": naive,
    "torch.linear_cross_entropy": torch_fused,
    "frozen_head": ours,
    "frozen_head, autograd": ours_autograd,
}


def measure(name: str, args: argparse.Namespace) -> dict[str, float]:
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    dtype = getattr(torch, args.dtype)
    hidden = torch.randn(args.positions, args.hidden, device=device, dtype=dtype).requires_grad_()
    # in place: a temporary of the weight's size would raise the peak before the measurement
    head = PlainHead(torch.randn(args.vocab, args.hidden, device=device, dtype=dtype).mul_(0.05))
    rows = torch.randint(args.vocab, (args.positions,), device=device)
    step = VARIANTS[name]
    step(hidden[:8], head, rows[:8], 8).sum().backward()  # libraries set themselves up
    if device.type == "cuda":
        step(hidden, head, rows, args.chunk).sum().backward()
    hidden.grad = torch.zeros_like(hidden)
    before = peak(device, reset=True)
    start, start_cpu = time.perf_counter(), time.process_time()
    loss = step(hidden, head, rows, args.chunk).sum()
    loss.backward()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    norm = float(hidden.grad.float().norm())
    extra = (peak(device) - before) / 2**20
    return {"seconds": seconds, "cpu": cpu, "extra_mib": extra, "loss": loss.item(), "grad_norm": norm}


def peak(device: torch.device, *, reset: bool = False) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--chunk", type=int, default=0, help="0 is the default for vocabulary and device")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--variant", choices=list(VARIANTS), action="append")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.variant[0], args)))
        return
    settings = {k: v for k, v in vars(args).items() if k not in ("variant", "child")}
    print(f"torch {torch.__version__}", *(f"{k}={v}" for k, v in settings.items()))
    flags = [text for key, value in settings.items() for text in (f"--{key}", str(value))]
    for name in args.variant or list(VARIANTS):
        if name.startswith("torch.") and not hasattr(F, "linear_cross_entropy"):
            print(f"{name:28s} not in this torch")
            continue
        command = [sys.executable, __file__, "--child", "--variant", name, *flags]
        out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{name:28s} {out['seconds']:7.3f} s ({out['cpu']:6.2f} CPU s) {out['extra_mib']:9.1f} MiB extra  "
            f"loss {out['loss']:.6g}  |grad| {out['grad_norm']:.6g}"
        )


if __name__ == "__main__":
    main()
