"""One rank of the distributed tests: runs of ``specdraft``, one after the other, under ``torch.distributed.run``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    from specdraft.cli import main as specdraft

    torch.set_num_threads(1)
    runs: list[list[Any]] = json.loads(Path(sys.argv[1]).read_text())
    sys.argv[1:] = []
    for words in runs:
        specdraft(words)


if __name__ == "__main__":
    main()
