"""A save that is interrupted, or that meets a full disk, leaves the previous checkpoint."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specdraft.checkpoints import AtomicCheckpointIO
from specdraft.checkpoints.facts import KEY
from specdraft.checkpoints.lightning_file import load_content
from specdraft.scratch import scratch_of


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
    monkeypatch.setattr("specdraft.checkpoints.atomic.sweep", lambda *_: None)  # the device is older than an hour
    path = tmp_path / "last.ckpt"
    scratch_of(path).symlink_to("/dev/full")
    with pytest.raises(OSError, match="disk full while saving checkpoint"):
        AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(1 << 16)}, path)
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
def test_others_may_read_a_checkpoint_as_far_as_the_umask_allows(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        AtomicCheckpointIO().save_checkpoint({"step": 1}, tmp_path / "last.ckpt")
    finally:
        os.umask(before)
    assert (tmp_path / "last.ckpt").stat().st_mode & 0o777 == 0o666 & ~mask


def _die_while_saving(path: Path) -> None:
    def killed(checkpoint: Any, file: Any) -> None:
        file.write(b"half of it")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    torch.save = killed
    AtomicCheckpointIO().save_checkpoint({"step": 1}, path)


def test_what_a_killed_save_left_goes_with_the_next_one(tmp_path: Path) -> None:
    others = tmp_path / "notes.tmp"
    others.write_text("of somebody else")
    os.utime(others, (0, 0))
    process = multiprocessing.get_context("fork").Process(target=_die_while_saving, args=(tmp_path / "step=1.ckpt",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (left,) = tmp_path.glob("step=1.ckpt.*.tmp")
    assert left.read_bytes() == b"half of it"
    AtomicCheckpointIO().save_checkpoint({"step": 2}, tmp_path / "step=2.ckpt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.tmp", "step=2.ckpt"]


def test_addresses_are_left_to_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    AtomicCheckpointIO().save_checkpoint({"step": 1}, "memory://runs/last.ckpt")
    assert not list(tmp_path.iterdir())
    assert AtomicCheckpointIO().load_checkpoint("memory://runs/last.ckpt", weights_only=True) == {"step": 1}


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def altered(content: bytes) -> bytes:
    place = content.index(bytes(range(1, 60)))
    return content[:place] + b"\xff" + content[place + 1 :]


@pytest.mark.parametrize("spoil", [cut, altered, lambda _: b"", lambda _: b"no archive"])
def test_a_damaged_file_is_named(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({KEY: {}, "w": torch.arange(200, dtype=torch.uint8)}, path)
    assert load_content(path)["w"][-1] == AtomicCheckpointIO().load_checkpoint(path)["w"][-1] == 199
    path.write_bytes(spoil(path.read_bytes()))
    for load in (load_content, AtomicCheckpointIO().load_checkpoint):
        with pytest.raises(ValueError, match=r"last\.ckpt is damaged or no checkpoint \(.+\); take another one"):
            load(path)
