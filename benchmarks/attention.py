"""Time split against dense block attention, forward and backward, on one training batch.

Run ``python benchmarks/attention.py``. Both work on the same inputs: one row, sorted random anchors, float32. The runs
alternate, so that a busy machine slows both alike; the fastest of each is compared beside the median.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor

from specdraft.drafters import BlockAttention, BlockLayout, DenseAttention, SplitAttention


def make_layout(rows: int, length: int, anchors: int, block_size: int) -> BlockLayout:
    index = torch.stack([torch.randperm(length - 1)[:anchors].sort().values for _ in range(rows)])
    return BlockLayout(
        anchors=index,
        slots=torch.ones(rows, anchors, block_size, dtype=torch.bool),
        document_ids=torch.zeros(rows, length, dtype=torch.int64),
        position_ids=torch.arange(length).expand(rows, length),
    )


def step(attention: BlockAttention, inputs: list[Tensor], layout: BlockLayout, upstream: Tensor) -> list[Tensor]:
    """One layer as it is trained: the mask, the forward and the backward pass."""
    queries, keys, values, block_keys, block_values = inputs
    out = attention(queries, (keys, values), (block_keys, block_values), attention.prepare(layout))
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=512, help="context tokens L")
    parser.add_argument("--anchors", type=int, default=64, help="blocks A per row")
    parser.add_argument("--block-size", type=int, default=16, help="slots B per block")
    parser.add_argument("--rows", type=int, default=1, help="rows N")
    parser.add_argument("--heads", type=int, nargs=3, default=(9, 3, 64), help="query heads, key heads, head width")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--chunk", type=int, default=None, help="scores per chunk of the split attention")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    heads, kv_heads, width = args.heads
    layout = make_layout(args.rows, args.length, args.anchors, args.block_size)
    count = args.anchors * args.block_size
    sizes = [(count, heads), (args.length, kv_heads), (args.length, kv_heads), (count, kv_heads), (count, kv_heads)]
    inputs = [torch.randn(args.rows, n, h, width, requires_grad=True) for n, h in sizes]
    upstream = torch.randn_like(inputs[0])
    split = SplitAttention() if args.chunk is None else SplitAttention(args.chunk)
    contestants: dict[str, BlockAttention] = {"dense": DenseAttention(), "split": split}
    results = {name: step(a, inputs, layout, upstream) for name, a in contestants.items()}  # also the warm-up
    error = max(float((d - s).abs().max()) for d, s in zip(results["dense"], results["split"], strict=True))
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(args.repetitions):
        for name, attention in contestants.items():
            start = time.perf_counter()
            step(attention, inputs, layout, upstream)
            seconds[name].append(time.perf_counter() - start)
    print(
        f"N={args.rows} L={args.length} A={args.anchors} B={args.block_size} heads={heads}/{kv_heads} d={width} "
        f"float32, forward + backward, {torch.get_num_threads()} threads, {args.repetitions} interleaved repetitions"
    )
    for name, values in seconds.items():
        print(f"{name:6s} median {statistics.median(values) * 1e3:7.1f} ms   min {min(values) * 1e3:7.1f} ms")
    median = statistics.median(seconds["dense"]) / statistics.median(seconds["split"])
    fastest = min(seconds["dense"]) / min(seconds["split"])
    print(f"ratio  median {median:7.2f} x    min {fastest:7.2f} x    largest difference {error:.1e}")


if __name__ == "__main__":
    main()
