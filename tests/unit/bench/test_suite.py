"""The papers' table, the published figures, and requests of later turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdraft.bench.suite import PAPER_SETS, published, suite_rows, write_paper_table
from specdraft.bench.turns import requests_of
from specdraft.data.evaluation_sets import EVALUATION_SETS
from specdraft.decoding import autoregressive_decode
from specdraft.targets import load_target


def test_published_figures_are_whole() -> None:
    entries = published()
    assert len(entries) > 20
    for entry in entries:
        assert set(entry) <= {"method", "target", "temperature", "source", "setting", "results", "average"}
        assert entry["temperature"] in (0, 1)
        assert entry["source"]
        assert entry["setting"]
        assert set(entry["results"]) <= set(EVALUATION_SETS)
        assert entry["results"] or entry["average"]
        for speed, tau in entry["results"].values():
            assert 1 <= tau <= 16
            assert speed is None or 0.5 < speed <= tau + 0.6
        if len(entry["results"]) >= 7 and entry.get("average"):
            # the DFlash paper's average speed-ups are below the means of its rows, so only tau is checked
            taus = [tau for _, tau in entry["results"].values()]
            assert sum(taus) / len(taus) == pytest.approx(entry["average"][1], abs=0.02), entry
    found = next(e for e in entries if (e["method"], e["target"], e["temperature"]) == ("DFlash", "Qwen3-8B", 1))
    assert found["results"]["gsm8k"] == [4.67, 5.98]


def record(temperature: float, concurrency: int = 1, block: int | None = 8, **families: Any) -> dict[str, Any]:
    named = {name: {"speedup": speed, "mat_prompt_mean": tau} for name, (speed, tau) in families.items()}
    return {
        "method": "mine", "block_size": block, "concurrency": concurrency, "temperature": temperature,
        "families": named,
    }  # fmt: skip


def test_table_in_the_papers_layout(tmp_path: Path) -> None:
    sets = ["gsm8k", "mbpp"]
    records = [
        record(0.0, block=None, gsm8k=(1.0, None), mbpp=(1.0, None)),
        record(0.0, gsm8k=(2.0, 3.0), mbpp=(1.0, 2.5)),
        record(0.0, concurrency=4, gsm8k=(9.0, 9.0), mbpp=(9.0, 9.0)),
        record(1.0, gsm8k=(1.5, 2.0), mbpp=(None, 2.0)),
    ]
    text = write_paper_table(tmp_path, records, "some/Qwen3-8B", sets)
    assert (tmp_path / "paper.md").read_text() == text
    lines = text.splitlines()
    zero, one = lines.index("### T = 0"), lines.index("### T = 1")
    assert lines[zero + 2] == "| method | gsm8k | mbpp | average |"
    assert lines[zero + 4] == "| **mine, B=8** | 2.00 / 3.00 | 1.00 / 2.50 | 1.50 / 2.75 |"
    assert "9.00 / 9.00" not in text
    assert lines[one + 4] == "| **mine, B=8** | 1.50 / 2.00 | - / 2.00 | - / 2.00 |"
    dflash = "| DFlash, Qwen3-8B (DFlash, arXiv 2602.06036v2) | 5.15 / 6.54 | 4.65 / 5.95 | 4.86 / 6.49 |"
    assert dflash in lines[zero:one]
    assert lines[zero + 5].startswith("| EAGLE-3 (tree 16), Qwen3-8B")  # this target first
    assert any(line.startswith("DSpark, arXiv 2607.05147: 7 drafts") for line in lines)
    assert "| DSpark, Qwen3-8B (DSpark, arXiv 2607.05147) | - / 6.17 | - / 5.16 |  |" in lines[one:]


def test_suite_takes_as_many_rows_as_the_papers(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"turns": [f"q{i}"]}) + "\n" for i in range(200)))
    rows = suite_rows([f"gsm8k={file}", f"aime25={file}"])
    assert [row["family"] for row in rows].count("gsm8k") == 128
    assert [row["family"] for row in rows].count("aime25") == 30
    assert set(PAPER_SETS) <= set(EVALUATION_SETS)
    with pytest.raises(ValueError, match="each once"):
        suite_rows([f"gsm8k={file}", "gsm8k"])
    with pytest.raises(ValueError, match="unknown"):
        suite_rows(["mmlu"])


def test_later_turns_follow_the_targets_own_answers(tiny_target: Path) -> None:
    target = load_target(str(tiny_target))
    rows = [
        {"prompt": "add one", "turns": ["add one", "and two", "the plum"], "family": "mt-bench"},
        {"prompt": "take three"},
    ]
    requests = requests_of(target, rows, 6, 4)
    assert [request.workload for request in requests] == ["mt-bench"] * 3 + ["all"]
    first = autoregressive_decode(target, requests[:1]).results[0].tokens
    encode, stops = target.tokenizer, target.stop_token_ids
    answer = encode.decode([token for token in first if token not in stops], skip_special_tokens=True)
    said = [
        {"role": "user", "content": "add one"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "and two"},
    ]
    wanted = encode.apply_chat_template(said, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert list(requests[1].prompt_ids) == list(wanted)
    assert len(requests[2].prompt_ids) > len(requests[1].prompt_ids)
