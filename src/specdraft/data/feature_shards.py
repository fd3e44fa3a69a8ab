"""Files of a feature cache: safetensors of bounded size, each written whole."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from specdraft.scratch import scratch_of


@dataclass(frozen=True)
class ShardPlan:
    """Rows of one file.

    Attributes:
        number: Its number.
        rows: Numbers of its rows, in their order in the file.
        starts: First token of each row in the file, and the end of the last.
    """

    number: int
    rows: list[int]
    starts: list[int]

    @property
    def name(self) -> str:
        """File name."""
        return f"shard-{self.number:06}.safetensors"

    @property
    def tokens(self) -> int:
        """Tokens of all its rows."""
        return self.starts[-1]


def plan_shards(lengths: Sequence[int], token_bytes: int, shard_bytes: int) -> list[ShardPlan]:
    """Deal rows to files of at most ``shard_bytes``; a longer row makes a file of its own.

    The longest rows come first, so that rows of similar length share a batch, and a batch too large for the memory
    fails at once. The plan depends on nothing but the arguments, so a resume with another number of processes goes on
    with the same files.

    Args:
        lengths: Tokens of each row.
        token_bytes: Bytes of a token.
        shard_bytes: Most bytes of a file's tensors.
    """
    out: list[ShardPlan] = []
    most = shard_bytes // token_bytes
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not out or out[-1].tokens + lengths[row] > most:
            out.append(ShardPlan(len(out), [], [0]))
        out[-1].rows.append(row)
        out[-1].starts.append(out[-1].tokens + lengths[row])
    return out


def write_shard(folder: Path, plan: ShardPlan, tensors: dict[str, Tensor], made_for: str) -> tuple[int, str]:
    """Write a file under its name in one step, on the disk when this returns.

    Plain writes and not a map: on a full disk a write raises, while a store into a mapped page kills the process.

    Args:
        folder: Folder of the cache.
        plan: What the file holds.
        tensors: The values, one line per token.
        made_for: Fingerprint of the cache, kept in the file.

    Returns:
        Bytes and SHA-256 of the file.

    Raises:
        OSError: If it cannot be written; ``errno`` ENOSPC tells a full disk.
        FileNotFoundError: If the folder is not there.
    """
    data = save({**tensors, "rows": torch.tensor(plan.rows)}, {"made_for": made_for})
    path = folder / plan.name
    scratch = scratch_of(path)
    try:
        with open(scratch, "wb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) or 0 :]
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno == errno.ENOSPC:
            scratch.unlink(missing_ok=True)
        raise
    os.replace(scratch, path)
    return len(data), hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
