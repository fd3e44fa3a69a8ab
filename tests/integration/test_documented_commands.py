"""Every command, configuration and link of README and docs holds against the code."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from documented import PAGES, ROOT, command_lines, commands, fenced, includes, lines_with
from jsonargparse import capture_parser

from specdraft import cli

TRAINING = ("fit", "validate", "test", "predict")
RUNS = tuple(cli.RUN_COMMANDS)
ALL = sorted({tuple(words) for page in PAGES for words in commands(page)})
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def parser() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["specdraft"])
        return capture_parser(lambda: cli.main(["fit"]))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from which the documented paths are right, with the part that the README writes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "my_parts.py").write_text(fenced(ROOT / "README.md", "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples")


def test_every_command_is_documented() -> None:
    assert {words[0] for words in ALL} >= {"fit", *cli.COMMANDS, *RUNS}
    assert len(ALL) > 30


@pytest.mark.parametrize("words", [w for w in ALL if w[0] in TRAINING], ids=" ".join)
def test_training_parses(parser: Any, words: tuple[str, ...]) -> None:
    if any("help" in word or word == "--print_config" for word in words):
        with pytest.raises(SystemExit) as caught:
            parser.parse_args(list(words))
        assert caught.value.code == 0
        return
    chosen = parser.parse_args(list(words))[words[0]]
    assert chosen.model.drafter.class_path
    assert chosen.data.init_args.train


@pytest.mark.parametrize("words", [w for w in ALL if w[0] not in TRAINING + RUNS], ids=" ".join)
def test_command_parses(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    real: Callable[..., Any] = cli.COMMANDS[words[0]]
    called: list[dict[str, Any]] = []

    @functools.wraps(real)
    def record(**options: Any) -> None:
        called.append(options)

    monkeypatch.setitem(cli.COMMANDS, words[0], record)
    cli.main(list(words))
    assert len(called) == 1


@pytest.mark.parametrize("words", [w for w in ALL if w[0] in RUNS], ids=" ".join)
def test_command_over_a_run_parses(parser: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    """What is not an option of the command must be one of ``fit``."""

    class Parsed(Exception):
        pass

    def configured(rest: list[str]) -> Any:
        here = ["experiments/quickstart.yaml" if word == "my-run.yaml" else word for word in rest]
        assert parser.parse_args(["fit", *here]).fit.data.class_path
        raise Parsed

    monkeypatch.setattr(cli, "configured", configured)
    with pytest.raises(Parsed):
        cli.main(list(words))


@pytest.mark.parametrize(
    "words", [("fit", "--model.corector=DCOCO"), ("bench", "--checkpoints", "a.ckpt")], ids=" ".join
)
def test_a_wrong_command_is_noticed(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setattr("sys.argv", ["specdraft"])
    with pytest.raises(SystemExit):
        cli.main(list(words))


@pytest.mark.parametrize("page", [p for p in PAGES if fenced(p, "yaml")], ids=lambda p: p.stem)
def test_configurations_parse(parser: Any, page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(fenced(page, "yaml")):
        whole = {"model": {"target": {"path": "some-target"}}, "data": {"class_path": "ChatDataModule"}}
        whole["data"]["init_args"] = {"train": "chats.jsonl"}  # type: ignore[assignment]
        given = yaml.safe_load(block)
        for key in ("model", "data"):
            given[key] = {**whole[key], **given.get(key, {})}
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(given))
        chosen = parser.parse_args(["fit", "--config", str(path)]).fit
        assert chosen.data.class_path == "specdraft.data.ChatDataModule"


def test_files_of_the_how_tos_appear_in_their_pages() -> None:
    """A marker that is no marker is shown as it stands, and no build complains."""
    shown = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in includes(page):
            found = re.fullmatch(r'--8<-- "(docs/examples/(\w+\.py))"', line)
            assert found, f"{page.name}: {line}"
            path, name = found.groups()
            assert f"[{path}](../examples/{name})" in text.split(line)[0], f"{page.name}: no link to {path} above it"
            shown.append(ROOT / path)
    assert sorted(shown) == EXAMPLES


def test_commands_with_a_part_of_the_how_tos_say_where_it_lies() -> None:
    lines = [line for page in PAGES for line in command_lines(page)]
    for path in EXAMPLES:
        mine = [line for line in lines if f"={path.stem}." in line]
        assert mine, f"no command uses {path.name}"
        for line in mine:
            assert line.startswith("PYTHONPATH=docs/examples "), line


def test_variants_of_the_quickstart_have_names_of_their_own() -> None:
    """Runs of one name count as repetitions of one setting."""
    begins = [words for words in ALL if words[:3] == ("fit", "--config", "experiments/quickstart.yaml")]
    overlays = re.compile(r"experiments/ablations/(corrector|dscout)_")  # these bring a name
    variants = [w for w in begins if len(w) > 3 and "--ckpt_path" not in w and "--print_config" not in w]
    assert len(variants) > 8
    for words in variants:
        named = any(word.startswith("--trainer.logger.init_args.name=") for word in words)
        assert named or any(overlays.match(word) for word in words), " ".join(words)


@pytest.mark.parametrize("budget", ["steps", "slots", "time"])
@pytest.mark.parametrize(("target", "runs"), [("ablation-dscout", 7), ("ablation-correctors", 8)])
def test_commands_of_the_ablations_parse(parser: Any, target: str, runs: int, budget: str) -> None:
    """What ``make`` would run, read without running it."""
    options = [f"BUDGET={budget}", "CHECKPOINT=best.ckpt", "FIT=--seed_everything 43", "-n"]
    done = subprocess.run(["make", target, *options], cwd=ROOT, check=True, capture_output=True, text=True)
    lines = done.stdout.replace("\\\n", " ").split("&&")
    typed = [shlex.split(line.split("specdraft ", 1)[1]) for line in lines if "specdraft " in line]
    trained = [words for words in typed if words[0] in TRAINING]
    assert len(trained) == runs
    assert typed[-1][:2] == ["compare", "--runs"]
    for words in trained:
        chosen = parser.parse_args(words)[words[0]]
        assert chosen.seed_everything == 43
        if words[0] == "fit":  # measured at its last step, or when the time is over
            assert chosen.trainer.val_check_interval == chosen.trainer.max_steps
            assert (chosen.trainer.max_time is not None) == (budget == "time" and target == "ablation-dscout")
        name = chosen.trainer.logger.init_args.name
        assert f"runs/{name}" in typed[-1]


def test_make_targets_and_scripts_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for words in lines_with(page, "make"):
            assert words[1] in targets, f"{page.name}: make {words[1]}"
        text = page.read_text(encoding="utf-8")
        for script in re.findall(r"python ((?:benchmarks|experiments)/\w+\.py)", text):
            assert (ROOT / script).is_file(), f"{page.name}: {script}"
        for path in re.findall(r"`((?:experiments|tests|docs|benchmarks)/[\w/.-]+\.(?:py|yaml|md))`", text):
            if path not in ("benchmarks/RESULTS.md", "experiments/REPORT.md"):  # written by what the page describes
                assert (ROOT / path).is_file(), f"{page.name}: {path}"


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists(), link
