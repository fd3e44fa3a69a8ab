"""SIGKILL at random moments of a training: it ends with the weights of one that nothing interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("killed_training.py")


def test_a_training_is_killed(tiny_config: Path, tmp_path: Path) -> None:
    text = tiny_config.read_text()
    for old, new in (
        ("max_steps: 6", "max_steps: 20"),
        ("val_check_interval: 3", "val_check_interval: 16\n  accumulate_grad_batches: 2"),
        ("tap_norm: true}", "tap_norm: true, dropout: 0.1}"),
        ("  matmul_precision", "  lr_scheduler: CosineWithWarmup\n  matmul_precision"),
    ):
        assert old in text
        text = text.replace(old, new)
    tiny_config.write_text(text)
    folder = tmp_path / "kills"
    folder.mkdir()
    path = os.pathsep.join([str(SCRIPT.parent.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tiny_config), str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert int(done.stdout.split()[-1]) == int(os.environ.get("SPECDRAFT_KILLS", "5"))
