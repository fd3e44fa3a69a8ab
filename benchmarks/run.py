"""Run the ratio benchmarks and write ``benchmarks/RESULTS.md``; ``make benchmarks``."""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from pathlib import Path

import decoding
import training_step
from measure import machine

# each in a process of its own, because threads and memory are what they measure
ALONE = ("correctors.py", "cached_features.py", "memory.py", "regeneration.py")


def alone(script: str) -> list[str]:
    """Section of a script that prints its results."""
    path = Path(__file__).with_name(script)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    said = done.stdout.strip() if done.returncode == 0 else f"failed:\n{done.stderr.strip()[-2000:]}"
    fence = [] if "|" in said else ["```"]
    return ["", f"## `benchmarks/{script}`", "", *fence, said, *fence]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", nargs="*", choices=ALONE, default=ALONE, help="scripts to run besides")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    decoding.add_options(parser)
    training_step.add_options(parser)
    options = parser.parse_args()
    lines = [
        "# Results of `make benchmarks`",
        "",
        "Each ratio comes from alternating runs in one process or of twin processes. Seconds on another machine "
        "differ, and so do ratios against `transformers.generate`, which depend on how fast weights are read. The "
        "scripts say what is measured.",
        "",
        f"{machine()}; {datetime.date.today():%Y-%m-%d}.",
        "",
        *decoding.report(options),
        "",
        *training_step.report(options),
    ]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for script in options.alone:  # each may take minutes, so what is known is written before
        lines += alone(script)
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
