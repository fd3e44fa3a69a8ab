"""A save that is interrupted, or that meets a full disk, leaves the previous checkpoint."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from specdraft.checkpoints import AtomicCheckpointIO


def test_full_disk_keeps_the_previous_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"step": 1}, path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"disk full while saving checkpoint .*last\.ckpt"):
        AtomicCheckpointIO().save_checkpoint({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_full_device(dir: Path, prefix: str, suffix: str) -> tuple[int, str]:
        return os.open("/dev/full", os.O_WRONLY), str(dir / "spoilt.part")

    monkeypatch.setattr("specdraft.checkpoints.atomic.tempfile.mkstemp", on_full_device)
    with pytest.raises(OSError, match="disk full while saving checkpoint"):
        AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(1 << 16)}, tmp_path / "last.ckpt")


def _save_for_ever(path: Path) -> None:
    weights = torch.arange(1 << 20)
    step = 0
    while True:
        step += 1
        AtomicCheckpointIO().save_checkpoint({"step": step, "weights": weights + step}, path)


@pytest.mark.parametrize("delay", [0.05, 0.11, 0.23])
def test_kill_during_a_save_leaves_a_loadable_checkpoint(tmp_path: Path, delay: float) -> None:
    path = tmp_path / "last.ckpt"
    process = multiprocessing.get_context("fork").Process(target=_save_for_ever, args=(path,))
    process.start()
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(delay)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    found = torch.load(path, weights_only=True)
    assert torch.equal(found["weights"], torch.arange(1 << 20) + found["step"])
