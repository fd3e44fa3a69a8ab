"""The scripts of ``benchmarks/`` run and write what they promise; figures are not judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed(script: str, *words: object) -> str:
    """What a script of ``benchmarks/`` prints."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *map(str, words)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_results_are_written(tiny_target: Path, tmp_path: Path) -> None:
    out = tmp_path / "RESULTS.md"
    words = ["--target", tiny_target, "--batches", "1", "8", "--tokens=6", "--context=60", "--repeats=1"]
    words += ["--conversations=1", "--length=24", "--anchors=2", "--steps=1", "--out", out, "--alone"]
    printed("run.py", *words)
    text = out.read_text()
    assert "torch" in text.split("##")[0]
    assert "| batch | engine tokens/s | generate tokens/s | ratio |" in text
    assert "AR at concurrency 8" in text
    for line in ("| 8 of 8 |", "| 16 | ", "| NoCorrector | ", "| naive | ", "| specdraft | ", "round / sum"):
        assert line in text, line


def test_cached_steps_are_compared(tiny_config: Path) -> None:
    text = printed("cached_features.py", "--config", tiny_config, "--rows=8", "--turns=1")
    assert "online" in text.splitlines()[-1]


def test_regeneration_is_compared(tiny_target: Path, chat_file: Path) -> None:
    words = ("--target", tiny_target, "--prompts", chat_file, "--rows=6", "--tokens=7", "--concurrency=2")
    text = printed("regeneration.py", *words)
    assert "6 of 6 answers are equal" in text
    assert "| engine |" in text
