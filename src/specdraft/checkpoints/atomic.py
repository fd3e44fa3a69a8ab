"""Checkpoint writing that a crash cannot spoil."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from typing_extensions import override

from specdraft.scratch import scratch_of, sweep


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write beside the destination, flush to disk, then rename: a reader finds the old file or the whole new one.

    The default writes to the system's temporary folder and moves, which copies, not renames, when that lies on
    another file system. What a killed process has left of a file goes with the next save. Addresses such as
    ``s3://bucket/run`` are left to Lightning, and so are their guarantees.
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # the folder may hold others' files: only what is named like a checkpoint being written is looked at
        sweep(path.parent, f"*{path.suffix}.*.tmp")
        scratch = scratch_of(path)
        try:
            with scratch.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        except BaseException as error:
            scratch.unlink(missing_ok=True)
            # torch reports a full disk as a RuntimeError of its zip writer, so the free space decides
            if _is_disk_full(error, path.parent):
                kept = "the previous one is untouched" if path.exists() else "earlier checkpoints are untouched"
                raise OSError(
                    errno.ENOSPC,
                    f"disk full while saving checkpoint {path}: {kept}; free space and resume with --ckpt_path",
                ) from error
            raise

    @override
    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        with damage_named(path):
            return super().load_checkpoint(path, *args, **kwargs)


@contextmanager
def damage_named(path: Any) -> Iterator[None]:
    """Say which file it is that torch cannot read, or that differs from what was written.

    The archives have checksums, which torch does not compare.

    Raises:
        ValueError: If the file is cut, altered or none of torch's.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if (name := archive.testzip()) is not None:
                    raise RuntimeError(f"checksum of {name}")
        yield
    except torch.OutOfMemoryError:  # a RuntimeError too
        raise
    except (RuntimeError, EOFError, UnpicklingError, zipfile.BadZipFile) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise ValueError(
            f"{path} is damaged or no checkpoint ({reason}); take another one, such as best.ckpt beside last.ckpt"
        ) from error


def _is_disk_full(error: BaseException, folder: Path) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, RuntimeError):
        stat = os.statvfs(folder)
        return stat.f_bavail * stat.f_frsize < 1 << 20 or "No space left" in str(error)
    return False
