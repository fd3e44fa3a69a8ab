"""Comparison of runs from their logs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from specdraft.compare import compare, differences, read_runs, table

CONFIG = """
trainer:
  callbacks:
    - class_path: specdraft.callbacks.SpeculativeDecoding
      init_args: {{num_prompts: 16, max_new_tokens: 64, temperature: {temperature}, concurrency: 1}}
model:
  target: {{path: some-target}}
data:
  init_args: {{train: chats, val: null}}
"""


def write_run(folder: Path, mats: list[float], temperature: float = 0.0) -> None:
    with SummaryWriter(str(folder)) as writer:
        for step, mat in enumerate(mats):
            writer.add_scalar("decode/mat", mat, step)
            writer.add_scalar("decode/speedup", mat / 2, step)
            writer.add_scalar("decode/accept_at/1", mat / 4, step)
    (folder / "config.yaml").write_text(CONFIG.format(temperature=temperature))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "none" / "version_0", [1.0, 1.5, 1.25])
    write_run(tmp_path / "dcoco" / "version_0", [1.0, 2.0])
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(("at", "expected"), [("best", (2.0, 1.5)), ("last", (2.0, 1.25))])
def test_values_are_those_of_one_step(runs: Path, at: str, expected: tuple[float, ...]) -> None:
    found = read_runs([str(runs)], at)
    assert [run.name for run in found] == ["dcoco/version_0", "none/version_0"]
    assert tuple(run.values["decode/mat"] for run in found) == expected
    assert all(run.values["decode/speedup"] == run.values["decode/mat"] / 2 for run in found)


def test_formats_hold_the_logged_numbers(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_runs([str(runs)])
    rows = list(csv.DictReader(table(found, "csv").splitlines()))
    assert [float(row["MAT"]) for row in rows] == [2.0, 1.5]
    assert [float(row["a_1"]) for row in rows] == [0.5, 0.375]
    assert [row["val MAT"] for row in rows] == ["", ""]
    assert [run["decode/mat"] for run in json.loads(table(found, "json"))] == [2.0, 1.5]
    compare(str(runs), plot=str(runs / "compare.png"))
    assert "NOT comparable" not in capsys.readouterr().out
    assert (runs / "compare.png").stat().st_size > 5000


def test_runs_measured_otherwise_are_told_apart(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(runs / "hot" / "version_0", [3.0], temperature=1.0)
    assert differences(read_runs([str(runs)])) == [
        "temperature: 0.0 in dcoco/version_0, none/version_0; 1.0 in hot/version_0"
    ]
    compare(str(runs))
    assert "NOT comparable" in capsys.readouterr().out


def test_missing_folders_and_runs_are_named(runs: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder .*gone"):
        read_runs([str(runs / "gone")])
    with pytest.raises(FileNotFoundError, match="no run with decode/mat"):
        read_runs([str(runs / "empty")])
