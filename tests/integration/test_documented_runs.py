"""The pages of docs, typed top to bottom; only target, data and sizes are tiny. The tutorial has a test of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from documented import PAGES, ROOT, commands, fenced, tiny_quickstart

Run = Callable[..., None]
# what needs a hub, a server or a large target: covered by tests of its own, and its words by test_documented_commands
ELSEWHERE = {
    "bench --checkpoint a.ckpt --suite paper --out runs/paper",
    "bench --checkpoint a.ckpt --suite paper --sets gsm8k=rows.jsonl mt-bench --num_prompts 80 --out runs/paper-80",
    "bench --checkpoint published-drafter --target NAME --suite paper --out runs/published",
    "fit --config experiments/qwen3-4b/dflash.yaml",
    "regenerate --prompts prompts.jsonl --out chats.jsonl --endpoint http://localhost:8000 --model SERVED-NAME "
    "--concurrency 64 --max-new-tokens 2048",
}
# appended to a command that does not say so itself
SMALLER = {
    "bench": {"--num_prompts": "8", "--max_new_tokens": "6"},
    "tune": {"--num_prompts": "4", "--max_new_tokens": "6"},
    "generate": {"--max_new_tokens": "6"},
    "regenerate": {"--limit": "5", "--max-new-tokens": "6", "--target": "NAME"},
}


def smaller(words: list[str]) -> list[str]:
    """A command with fewer and shorter answers: the last of two values counts."""
    out = list(words)
    for option, value in SMALLER.get(words[0], {}).items():
        if option == "--target" and option in words:
            continue
        out += [option, value]
    return out


@pytest.fixture
def place(
    run_cli: Run, tmp_path: Path, tiny_config: Path, tiny_target: Path, chat_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with what the pages take for granted: a trained quickstart, checkpoints, prompts, parts of one's own."""
    tiny_quickstart(tmp_path, tiny_config)
    run_cli("fit", "--config", "experiments/quickstart.yaml")
    options = ["--model.drafter.init_args.tap_norm=false", "--model.drafter.init_args.block_size=8"]
    options += ["--model.draft_vocab_size=null", "--trainer.logger.init_args.name=a"]
    run_cli("fit", "--config", "experiments/quickstart.yaml", *options)  # what every format can express
    trained = tmp_path / "runs/a/version_0/checkpoints/best.ckpt"
    for name in ("a.ckpt", "b.ckpt", "CHECKPOINT"):
        shutil.copy(trained, tmp_path / name)
    for name in ("prompts.jsonl", "rows.jsonl"):
        shutil.copy(chat_file, tmp_path / name)
    own = (tmp_path / "experiments/quickstart.yaml").read_text().replace("OnlineFeatures", "CachedFeatures")
    (tmp_path / "experiments/my-run.yaml").write_text(own)
    shutil.copytree(tiny_target, tmp_path / "NAME")
    (tmp_path / "my_parts.py").write_text(fenced(ROOT / "README.md", "python")[0])
    monkeypatch.setenv("SPECDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples")
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem != "tutorial" and commands(p)], ids=lambda p: p.stem)
def test_a_page_typed_from_top_to_bottom(run_cli: Run, place: Path, page: Path) -> None:
    if page.stem == "policies":
        assert [words[0] for words in commands(page)][:2] == ["tune", "bench"]  # the second takes what the first wrote
    for words in commands(page):
        typed = " ".join(words)
        if typed in ELSEWHERE:
            continue
        if typed == "inspect published-drafter":
            shutil.copytree(place / "drafter", place / "published-drafter")
        before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
        words = ["experiments/my-run.yaml" if word == "my-run.yaml" else word for word in words]
        if words[0] == "cache":
            words += ["--yes"]  # no terminal
        run_cli(*smaller(words))
        if words[0] not in ("inspect", "generate", "compare", "estimate") and "--verify" not in words:
            after = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
            assert after != before, f"{typed} wrote nothing"


def test_what_is_left_out_is_documented() -> None:
    assert {" ".join(words) for page in PAGES for words in commands(page)} >= ELSEWHERE
