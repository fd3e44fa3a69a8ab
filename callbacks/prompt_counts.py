"""What was decoded of every prompt, kept with the run so that runs can be compared prompt by prompt."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from specdraft.bootstrap import FIELDS
from specdraft.decoding import RequestResult
from specdraft.scratch import write_text


def counts(
    drafted: Sequence[RequestResult], baseline: Sequence[RequestResult], total: int, mine: slice
) -> list[list[float]]:
    """:data:`FIELDS` of the prompts of all ranks, zeros for those of other ranks, so that the sum over ranks is whole.

    Args:
        drafted: Speculative continuations of this rank's prompts.
        baseline: Autoregressive ones.
        total: Prompts of all ranks.
        mine: Which of them are this rank's.
    """
    rows = [[0.0] * len(FIELDS) for _ in range(total)]
    rows[mine] = [_fields(one, other) for one, other in zip(drafted, baseline, strict=True)]
    return rows


def _fields(drafted: RequestResult, baseline: RequestResult) -> list[float]:
    values: list[float] = [drafted.rounds, sum(drafted.accepted)]
    for result in (drafted, baseline):
        values += [len(result.tokens) - 1, result.decoding_seconds]
    return values


def sum_over_ranks(trainer: Trainer, device: torch.device, values: list[float]) -> list[float]:
    """Sums of every value over the ranks; all ranks call it with as many values."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    summed = trainer.strategy.reduce(torch.tensor(values, dtype=dtype, device=device), reduce_op="sum")
    return summed.tolist()  # type: ignore[union-attr]


def digest(prompt_ids: Sequence[int] | Tensor) -> str:
    """A name of a prompt that is the same in every run: 12 hexadecimal digits of its token ids."""
    ids = prompt_ids.tolist() if isinstance(prompt_ids, Tensor) else list(prompt_ids)
    return hashlib.sha256(repr(ids).encode()).hexdigest()[:12]


def write_counts(path: Path, prompts: Sequence[str], families: Sequence[str], rows: Sequence[Sequence[float]]) -> None:
    """Write one line per prompt: its digest, its family, and :data:`FIELDS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["prompt", "family", *FIELDS])
    for prompt, family, values in zip(prompts, families, rows, strict=True):
        whole = [f"{v:.6f}" if name.endswith("seconds") else int(v) for name, v in zip(FIELDS, values, strict=True)]
        writer.writerow([prompt, family, *whole])
    write_text(path, file.getvalue())
