"""Every experiment and every overlay is valid as it lies in the repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "experiments").glob("*.yaml"))
OVERLAYS = sorted((ROOT / "experiments" / "ablations").glob("*.yaml"))
Run = Callable[..., None]


def test_there_are_experiments() -> None:
    assert {path.name for path in RUNS} >= {"quickstart.yaml", "smollm2.yaml"}


@pytest.mark.parametrize("run", RUNS, ids=lambda p: p.stem)
@pytest.mark.parametrize("overlay", [None, *OVERLAYS], ids=lambda p: p.stem if p else "alone")
def test_parses(run_cli: Run, capsys: pytest.CaptureFixture[str], run: Path, overlay: Path | None) -> None:
    configs = ["--config", run, *(["--config", overlay] if overlay else [])]
    with pytest.raises(SystemExit) as caught:
        run_cli("fit", *configs, "--print_config")
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    for part in ("drafter:", "corrector:", "objective:", "ChatDataModule"):
        assert part in printed


@pytest.mark.parametrize("name", ["DCOCO", "SelectorCorrector", "DominoCorrector", "MarkovCorrector", "NoCorrector"])
def test_overlay_and_short_form_are_the_same_run(run_cli: Run, capsys: pytest.CaptureFixture[str], name: str) -> None:
    short = name.removesuffix("Corrector").lower()
    parsed = []
    overlay = ROOT / "experiments" / "ablations" / f"corrector_{'none' if short == 'no' else short}.yaml"
    for form in (["--config", overlay], [f"--model.corrector={name}"]):
        with pytest.raises(SystemExit):
            run_cli("fit", "--config", ROOT / "experiments/quickstart.yaml", *form, "--print_config")
        parsed.append(yaml.safe_load(capsys.readouterr().out))
        parsed[-1]["trainer"]["logger"]["init_args"].pop("name")
    assert parsed[0] == parsed[1]


@pytest.mark.parametrize("path", sorted((ROOT / "experiments" / "parts").glob("callbacks*.yaml")), ids=lambda p: p.stem)
def test_every_set_of_callbacks_has_the_views_of_tensorboard(path: Path) -> None:
    names = [entry["class_path"] for entry in yaml.safe_load(path.read_text())]
    assert {"SpeculativeDecoding", "TrainingThroughput", "HParams", "ScalarLayout", "Provenance"} <= set(names)
