"""Run the ratio benchmarks and write ``benchmarks/RESULTS.md``; ``make benchmarks``."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import decoding
import training_step
from measure import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    decoding.add_options(parser)
    training_step.add_options(parser)
    options = parser.parse_args()
    lines = [
        "# Results of `make benchmarks`",
        "",
        "Each ratio comes from alternating runs in one process or of twin processes. Seconds on another machine "
        "differ, ratios should hold. The scripts say what is measured.",
        "",
        f"{machine()}; {datetime.date.today():%Y-%m-%d}.",
        "",
        *decoding.report(options),
        "",
        *training_step.report(options),
    ]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
