"""What README and docs tell a reader to type."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PROGRAM = re.compile(r"(?:PYTHONPATH=\S+ )?(?:python -m )?specdraft ")
# also one that a formatter has spread out
_INCLUDE = re.compile(r"^\s*-+\s*8\s*<\s*-+.*$", re.M)


def commands(page: Path) -> list[list[str]]:
    """Words behind ``specdraft`` of every command of a page, in its order.

    Commands are lines of code blocks, continued by a backslash, with a comment or not; and code inside of a sentence
    where it has an option.
    """
    return [shlex.split(_PROGRAM.sub("", line, count=1), comments=True) for line in command_lines(page)]


def command_lines(page: Path) -> list[str]:
    """The same commands as they are typed."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found: list[str] = []
    for line in text.split("\n"):
        if line.startswith("    ") and _PROGRAM.match(line.strip()):
            found.append(line.strip())
        elif not line.startswith("    "):
            found += [code for code in re.findall(r"`([^`]+)`", line) if _PROGRAM.match(code) and " --" in code]
    return found


def includes(page: Path) -> list[str]:
    """Lines of a page that stand for a file."""
    return [line.strip() for line in _INCLUDE.findall(page.read_text(encoding="utf-8"))]


def fenced(page: Path, language: str) -> list[str]:
    """Code blocks of a language, without those that include a file."""
    blocks: list[str] = re.findall(rf"^```{language}[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [block for block in blocks if not _INCLUDE.search(block)]


def lines_with(page: Path, program: str) -> list[list[str]]:
    """Words of the indented lines that call another program."""
    lines = (line.strip() for line in page.read_text(encoding="utf-8").split("\n") if line.startswith("    "))
    return [shlex.split(line, comments=True) for line in lines if line.startswith(program + " ")]


def tiny_quickstart(folder: Path, tiny_config: Path) -> Path:
    """Write the experiments into a folder, the quickstart among them with the target, data and sizes of a tiny run."""
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    path = folder / "experiments" / "quickstart.yaml"
    real, tiny = yaml.safe_load(path.read_text()), yaml.safe_load(tiny_config.read_text())
    real["model"]["target"] = tiny["model"]["target"]
    real["model"]["drafter"]["init_args"]["num_layers"] = 1
    real["model"]["draft_vocab_size"] = 24
    real["data"] = tiny["data"]
    real["trainer"] |= {"accelerator": "cpu", "max_steps": 2, "val_check_interval": 2, "log_every_n_steps": 1}
    real["trainer"] |= {"enable_progress_bar": False, "enable_model_summary": False}
    path.write_text(yaml.safe_dump(real, sort_keys=False))
    callbacks = folder / "experiments" / "parts" / "callbacks.yaml"
    text = callbacks.read_text().replace("num_prompts: 16", "num_prompts: 3").replace("tokens: 64", "tokens: 12")
    callbacks.write_text(text.replace("every_n_train_steps: 100", "every_n_train_steps: 1"))
    return path
