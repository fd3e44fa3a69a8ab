"""``experiments/report.py`` on synthetic runs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_compare import CONFIG, write_counts
from torch.utils.tensorboard import SummaryWriter

SCRIPT = Path(__file__).parents[2] / "experiments" / "report.py"


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ablation_report", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write(
    root: Path, name: str, version: str, accepted: list[int], seed: int = 42, temperature: float = 0.0, step: int = 99
) -> Path:
    """A run of 10 rounds per prompt whose logged MAT is that of its counts."""
    folder = root / name / version
    mat = 1 + sum(accepted) / (10 * len(accepted))
    with SummaryWriter(str(folder)) as writer:
        for tag, value in (("mat", mat), ("mat_drafts", mat - 1), ("speedup", mat / 2), ("lossless", 1.0)):
            writer.add_scalar(f"decode/{tag}", value, step)
    write_counts(folder, step + 1, accepted)
    (folder / "config.yaml").write_text(f"seed_everything: {seed}\n" + CONFIG.format(temperature=temperature))
    facts = {"command": ["/opt/bin/specdraft", "fit", "--config", f"{name}.yaml"], "git": "abc", "git_dirty": False}
    (folder / "provenance.json").write_text(json.dumps({**facts, "machine": "x86_64", "threads": 2, "devices": []}))
    return folder


def cells(text: str, setting: str) -> list[str]:
    (line,) = (line for line in text.split("\n") if line.startswith(f"| `{setting}`"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_rows_hold_the_logged_numbers(report: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "corrector_none", "version_0", [0, 5, 10, 20])
    write(tmp_path, "corrector_dcoco", "version_0", [5, 10, 15, 25], seed=42)
    write(tmp_path, "corrector_dcoco", "version_1", [3, 8, 13, 23], seed=43)
    write(tmp_path, "dscout_1_base", "version_0", [4, 4, 4])
    out = tmp_path / "REPORT.md"
    report.main([str(tmp_path), "--out", str(out)])
    text = out.read_text()
    assert text.index("## Correctors") < text.index("## DScout, step by step")
    none, dcoco = cells(text, "corrector_none"), cells(text, "corrector_dcoco")
    assert none[:4] == ["`corrector_none`", "42", "100", "1.875"]
    assert none[5:7] == ["0.875", "0.938"]
    assert none[8:] == ["", "", "100%"]
    # two seeds: their mean; every prompt gains 0.5 with one and 0.3 with the other, however prompts differ
    assert dcoco[:4] == ["`corrector_dcoco`", "42, 43", "100", "2.275"]
    assert dcoco[8:] == ["+0.400", "0.400..0.400", "100%"]
    low, high = map(float, dcoco[4].split(".."))
    assert 1.4 < low < 2.275 < high < 3.4
    assert "specdraft fit --config corrector_dcoco.yaml   # corrector_dcoco/version_1" in text
    assert "/opt/bin" not in text
    section = text[: text.index("## DScout")]
    assert "Comparable: the rows share" in section
    assert "Not comparable" not in section


def test_gains_are_between_runs_of_one_seed(report: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "dscout_1_base", "version_0", [4, 4, 4], seed=42)
    write(tmp_path, "dscout_1_base", "version_1", [8, 8, 8], seed=43)
    write(tmp_path, "dscout_2_mixed_horizon", "version_0", [6, 6, 6], seed=42)
    write(tmp_path, "dscout_3_unmasking", "version_0", [6, 6, 6], seed=44)
    text = report.report([str(tmp_path)])
    assert cells(text, "dscout_2_mixed_horizon")[8] == "+0.200"
    assert cells(text, "dscout_3_unmasking")[8] == "+0.000"  # no seed in common: over all


def test_seeds_that_reach_the_initial_weights_alone_are_said(report: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "dscout_1_base", "version_0", [4, 4, 4], seed=42)
    other = write(tmp_path, "dscout_2_mixed_horizon", "version_0", [4, 4, 4], seed=42)
    assert "initial weights" not in report.report([str(tmp_path)])
    path = other / "config.yaml"
    path.write_text(path.read_text().replace("model:", "model:\n  seed: 0", 1))
    assert "those of model.seed, in dscout_2_mixed_horizon/version_0" in report.report([str(tmp_path)])


def test_what_cannot_be_compared_is_said(report: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "dscout_1_base", "version_0", [4, 4, 4])
    write(tmp_path, "dscout_2_mixed_horizon", "version_0", [5, 5, 5], temperature=1.0, step=49)
    bare = write(tmp_path, "dscout_3_unmasking", "version_0", [6, 6, 6])
    (bare / "provenance.json").unlink()
    text = report.report([str(tmp_path)])
    assert "Not comparable in every respect" in text
    assert "temperature: 0.0 in dscout_1_base/version_0, dscout_3_unmasking/version_0; 1.0 in dscout_2" in text
    assert "steps: 100 in dscout_1_base/version_0; 50 in dscout_2_mixed_horizon/version_0" in text
    assert "dscout_3_unmasking/version_0 left no provenance.json" in text
    assert "(no provenance.json)   # dscout_3_unmasking/version_0" in text


def test_a_checkpoint_that_was_measured_later_shows_its_steps_and_both_commands(
    report: ModuleType, tmp_path: Path
) -> None:
    write(tmp_path, "corrector_none", "version_0", [4, 4, 4])
    trained = write(tmp_path, "corrector_dcoco", "version_0", [5, 5, 5], step=399)
    later = write(tmp_path, "corrector_dcoco", "version_1", [6, 6, 6], step=0)
    facts = json.loads((later / "provenance.json").read_text())
    facts |= {
        "command": ["specdraft", "validate"],
        "measured": {"path": f"{trained}/checkpoints/best.ckpt", "step": 400},
    }
    (later / "provenance.json").write_text(json.dumps(facts))
    (trained / "config.yaml").unlink()
    next(trained.glob("events*")).unlink()  # only the measurement is reported
    text = report.report([str(tmp_path)])
    assert cells(text, "corrector_dcoco")[2] == "400"
    assert "    specdraft fit --config corrector_dcoco.yaml   # trains corrector_dcoco/version_1" in text
    assert "    specdraft validate   # corrector_dcoco/version_1" in text
    assert "Measured with target some-target, held-out data chats, num_prompts 16, max_new_tokens 64" in text


def test_tuning_is_a_table(report: ModuleType, tmp_path: Path) -> None:
    assessment = {"workload": "all", "concurrency": 4, "chosen": 6, "predicted": 50.0, "measured": 60.0, "best": 6}
    assessment |= {"fixed": 4, "gain": 0.05, "regret": 0.0}
    where = {"workload": "all", "concurrency": 4}
    check: dict[str, Any] = {"temperature": 0.0, "assessments": [assessment], "ar_tokens_per_second": {4: 40.0}}
    check["mat"] = [{**where, "mat": {4: 1.5, 6: 1.75}}]
    check["policies"] = {"StaticTable": [{**where, "tokens_per_second": 59.0}]}
    facts = {"command": ["specdraft", "tune"], "num_prompts": 8, "prompts": "p", "seed": 0, "device_name": "cpu"}
    (tmp_path / "policy-tune").mkdir()
    (tmp_path / "policy-tune/tune.json").write_text(json.dumps({"facts": facts, "checks": [check]}))
    text = report.report([str(tmp_path)])
    row = "| all | 4 | 6 | 1.750 | 0.750 | 60.0 | 1.50x | 50.0 | 4 | +5.0% | 0.0% | 59.0 |"
    assert row in text
    assert "    specdraft tune" in text


def test_nothing_to_report(report: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run with decode/mat"):
        report.report([str(tmp_path)])
