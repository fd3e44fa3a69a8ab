"""A package of a user: typed against specdraft's own types, and swapped in by full class path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_fit import scalars

from specdraft.commands import load_module

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "tests" / "user_project"
Run = Callable[..., None]

WRONG = """
import torch
from specdraft.correctors import Corrector
from specdraft.objectives import Scores, Weighting
from specdraft.types import BlockBatch, Head, Proposal
from torch import Tensor


class Listed(Corrector):
    def propose(
        self, hidden: Tensor, base_logits: Tensor, anchor: Tensor, temperature: float,
        generator: torch.Generator | None, head: Head,
    ) -> Proposal:
        return Proposal(base_logits.argmax(-1).tolist(), confidences=None)


class Forgetful(Weighting):
    def weights(self, blocks: BlockBatch) -> Tensor:
        return blocks.supervized.float()
"""


def test_parts_are_swapped_in_by_class_path(
    run_cli: Run, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(PROJECT / "src")
    run_cli(
        *("fit", "--config", tiny_config, "--model.draft_vocab_size=24"),
        *("--model.corrector=my_drafting.correctors.RepeatBias", "--model.corrector.start=0.5"),
        *("--model.objective.init_args.weighting=my_drafting.FirstSlots",),
        *("--model.objective.init_args.weighting.count=1",),
    )
    values = scalars(tmp_path / "runs/tiny/v")
    assert values["decode/lossless"] == [1.0, 1.0]
    assert values["train/repeat_bias"][0] == 0.5
    assert values["train/repeat_bias"][-1] != 0.5
    assert values["train/weight_at/1"] == [1.0] * 6
    assert values["train/weight_at/2"] == [0.0] * 6
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    assert type(load_module(str(last), "cpu").corrector).__module__ == "my_drafting.correctors"
    capsys.readouterr()
    run_cli("generate", "--checkpoint", last, "--prompt", "add one and two", "--max_new_tokens=8")
    assert "output equal to AR" in capsys.readouterr().out


@pytest.mark.slow
def test_types_hold_and_mistakes_are_found(tmp_path: Path) -> None:
    """Half a minute: mypy reads torch once, for the project, the files of the how-tos, and one with four mistakes."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    words = ["--config-file", PROJECT / "pyproject.toml", "--follow-imports=silent", "--cache-dir", tmp_path / "cache"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, PROJECT / "src", ROOT / "docs" / "examples", wrong],
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        cwd=PROJECT,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert not [line for line in errors if "wrong.py" not in line], done.stdout
    for mistake in ("confidences", "list", '"weights"', "supervized"):
        assert any(mistake in line for line in errors), f"{mistake} was not found in\n{done.stdout}{done.stderr}"
