"""Time of one proposal of every corrector at the shapes of a large target, with random weights.

    python benchmarks/correctors.py [--hidden 4096 --vocab 151936 --drafts 15 --rows 1 8 --threads 1]

Prints milliseconds (median) and the ratio to DCOCO, top-k included; everything comes from one run on one machine.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

import torch

from specdraft.correctors import DCOCO, Corrector, DominoCorrector, MarkovCorrector, NoCorrector, SelectorCorrector
from specdraft.types import TargetSpec


class RowsOnly:
    """A head whose weight is not needed: the logits are given."""

    token_ids = None

    def to_ids(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows themselves."""
        return rows


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--drafts", type=int, default=15)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    spec = TargetSpec("benchmark", args.hidden, args.vocab, 36, head_dim=128)
    table = torch.randn(4096, args.hidden, device=device)  # rows are shared, to keep the embedding small
    made: dict[str, Corrector] = {}
    with device:
        made["dcoco"] = DCOCO(spec)
        made["selector (projected)"] = SelectorCorrector(spec, codebooks=False)
        made["selector"] = SelectorCorrector(spec)
        made["none"] = NoCorrector(spec)
        made["markov"] = MarkovCorrector(spec)
        made["markov gated"] = MarkovCorrector(spec, "gated")
        made["markov rnn"] = MarkovCorrector(spec, "rnn")
        made["domino"] = DominoCorrector(spec)
    print(f"H={args.hidden} V={args.vocab} K={args.drafts} {device} threads={args.threads} fp32, temperature 0")
    for rows in args.rows:
        hidden = torch.randn(rows, args.drafts, args.hidden, device=device)
        logits = torch.randn(rows, args.drafts, args.vocab, device=device)
        anchor = torch.zeros(rows, dtype=torch.int64, device=device)
        times = {}
        for name, corrector in made.items():
            corrector.bind(lambda ids: table[ids % len(table)])
            seconds = []
            for _ in range(args.repeats):
                if device.type == "cuda":
                    torch.cuda.synchronize()
                start = perf_counter()
                corrector.propose(hidden, logits, anchor, 0.0, None, RowsOnly())  # type: ignore[arg-type]
                if device.type == "cuda":
                    torch.cuda.synchronize()
                seconds.append(perf_counter() - start)
            times[name] = 1e3 * median(seconds[1:])
        for name, corrector in made.items():
            size = sum(parameter.numel() for parameter in corrector.parameters()) / 1e6
            ratio = times[name] / times["dcoco"]
            print(f"rows {rows}  {name:<22}{size:8.2f}M parameters {times[name]:9.2f} ms {ratio:7.2f} x DCOCO")


if __name__ == "__main__":
    main()
