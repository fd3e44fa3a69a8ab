"""What README and docs tell a reader to type."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

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
