"""The direction of imports, and the size of files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "specdraft"
MIDDLE = {"targets", "drafters", "correctors", "objectives", "metrics", "decoding"}
BASE = {"types", "taps", "cache", "attention", "packing", "precision"}
# middle packages may import the base; what stands later may import everything before it
MAY_USE = {
    **{name: BASE for name in BASE},
    **{name: BASE for name in MIDDLE},
    "decoding": BASE | {"scratch"},
    "schedules": set(),
    "progress": set(),
    "scratch": set(),
    "seeds": set(),
    "bootstrap": set(),
    "runs": {"bootstrap"},
    "compare": {"bootstrap", "runs"},
    "checkpoints": BASE | {"drafters", "scratch"},
    "data": BASE | {"progress", "scratch", "seeds"},
    "steps": set(),
    "step_sums": BASE,
    "sharding": {"checkpoints"},
    "correction": BASE | {"correctors", "objectives"},
    "validation": BASE | {"metrics"},
    "module": BASE
    | MIDDLE
    | {"schedules", "checkpoints", "seeds", "steps", "step_sums", "sharding", "correction", "validation"},
    "callbacks": BASE | MIDDLE | {"module", "checkpoints", "data", "bootstrap", "scratch", "sharding", "estimate"},
    "interchange": BASE | MIDDLE | {"module", "checkpoints"},
    "estimate": BASE | MIDDLE | {"module", "data"},
    "commands": BASE | MIDDLE | {"module", "callbacks", "data", "checkpoints", "interchange"},
    "arguments": set(),
    "regenerate": BASE | MIDDLE | {"data", "commands", "progress", "scratch"},
    "feature_cache": BASE | MIDDLE | {"module", "data"},
    "bench": BASE | MIDDLE | {"module", "callbacks", "data", "checkpoints", "commands", "scratch"},
    "tune": BASE | MIDDLE | {"module", "callbacks", "data", "checkpoints", "commands", "bench", "scratch"},
}


def python_files() -> list[Path]:
    return [p for p in SOURCE.rglob("*.py") if "__pycache__" not in p.parts] + list((ROOT / "callbacks").glob("*.py"))


def owner(path: Path) -> str:
    if path.is_relative_to(ROOT / "callbacks"):
        return "callbacks"
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module == "specdraft":
                found |= {f"specdraft.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    me = owner(path)
    if me not in MAY_USE:
        return
    for name in imported_modules(path):
        if name.startswith("specdraft."):
            other = name.split(".")[1]
            assert other == me or other in MAY_USE[me], f"{me} may not import specdraft.{other}"
        if me in MIDDLE | BASE:
            assert name.split(".")[0] not in ("lightning", "pytorch_lightning"), f"{me} may not import lightning"
        if me in (MIDDLE | BASE) - {"targets"}:
            assert name.split(".")[0] != "transformers", f"{me} may not import transformers"


def test_files_stay_short() -> None:
    long = {str(p.relative_to(ROOT)): n for p in python_files() if (n := len(p.read_text().splitlines())) > 350}
    assert not long


def test_callbacks_package_is_the_top_level_folder() -> None:
    import specdraft.callbacks

    assert Path(specdraft.callbacks.__file__).resolve().parent == ROOT / "callbacks"
