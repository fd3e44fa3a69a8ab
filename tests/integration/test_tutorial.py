"""Tutorial and export page, typed command by command as they are written; only target, data and sizes are tiny."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from documented import ROOT, commands, tiny_quickstart

Run = Callable[..., None]


@pytest.fixture
def quickstart(tmp_path: Path, tiny_config: Path) -> Path:
    """The quickstart with a tiny target, at the place that the tutorial names."""
    return tiny_quickstart(tmp_path, tiny_config)


def test_a_newcomer_gets_to_the_end(
    run_cli: Run, quickstart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [
        words
        for words in commands(ROOT / "docs" / "tutorial.md")
        if "--print_config" not in words and not any("help" in word for word in words)
    ]
    assert [words[0] for words in typed] == [
        *("fit", "generate", "fit", "fit", "fit", "compare", "inspect", "fit", "export", "inspect", "fit")
    ]
    printed = []
    for words in typed[:-1]:  # the last one is the long run
        run_cli(*words)
        printed.append(capsys.readouterr().out)
    assert "output equal to AR" in printed[1]
    for name in ("quickstart/version_0", "corrector_dcoco/version_0", "three_layers/version_0"):
        assert name in printed[5]
    # the resumed run went on in its folder, and the others have folders of their own
    assert [folder.name for folder in (tmp_path / "runs/quickstart").iterdir()] == ["version_0"]
    assert (tmp_path / "compare.png").stat().st_size > 5000
    assert "export deepspec    refused" in printed[6]
    assert "in the format of DeepSpec" in printed[8]
    assert "export deepspec    possible" in printed[9]
    assert json.loads((tmp_path / "exported/config.json").read_text())["architectures"] == ["Qwen3DSparkModel"]


def test_the_drafter_of_the_export_page_is_exported_and_taken_up_again(
    run_cli: Run, quickstart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = commands(ROOT / "docs" / "export.md")
    typed = [words for words in page if words[0] in ("fit", "export")]
    assert [words[0] for words in typed] == ["fit", "export", "fit"]
    for words in typed:
        run_cli(*words)
    assert "in the format of DeepSpec" in capsys.readouterr().out
    assert (tmp_path / "runs/public_more/version_0/checkpoints/last.ckpt").is_file()
