"""Files that are written beside their place and renamed, and the removal of what a killed process has left of them."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from time import time
from typing import Any

_STALE_SECONDS = 3600


def scratch_of(path: Path) -> Path:
    """Where this process writes before it renames to ``path``; no other process uses it."""
    return path.with_name(f"{path.name}.{_host()}.{os.getpid()}.tmp")


def write_json(path: Path, value: Any) -> None:
    """Write builtins to a file in one step, and to the disk."""
    write_text(path, json.dumps(value, indent=1))


def write_text(path: Path, text: str) -> None:
    """Write a file in one step, and to the disk."""
    scratch = scratch_of(path)
    try:
        with scratch.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def sweep(folder: Path, names: str = "*.tmp") -> None:
    """Remove what dead processes of this machine have left, and what is an hour old and may be of any machine.

    Args:
        folder: Where to look.
        names: Pattern of the files, all of :func:`scratch_of`; narrower where a folder is not specdraft's own.
    """
    for scratch in folder.glob(names):
        host, _, process = scratch.name.removesuffix(".tmp").rpartition(".")
        here = host.endswith(f".{_host()}") and process.isdigit()
        try:
            if (here and not _alive(int(process))) or time() - scratch.stat().st_mtime > _STALE_SECONDS:
                scratch.unlink()
        except FileNotFoundError:  # its process has just renamed it
            continue


def _host() -> str:
    return socket.gethostname()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
