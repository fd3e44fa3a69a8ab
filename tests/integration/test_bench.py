"""The benchmark through the command line, on a tiny checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from specdraft.commands import encode_prompt, load_module
from specdraft.decoding import Request, autoregressive_decode, speculative_decode

Run = Callable[..., None]


@pytest.fixture
def last(run_cli: Run, tiny_config: Path, tmp_path: Path) -> Path:
    run_cli("fit", "--config", tiny_config, "--trainer.max_steps=3")
    return tmp_path / "runs/tiny/v/checkpoints/last.ckpt"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [("add", "add one and two"), ("take", "take three and ten"), ("add", "add red"), ("take", "the apple is")]
    path.write_text("".join(json.dumps({"family": f, "prompt": p}) + "\n" for f, p in rows))
    return path


def decoded(module: Any, prompts: Path, block: int, concurrency: int) -> tuple[Any, Any]:
    target = module.target
    texts = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    requests = [Request(encode_prompt(target.tokenizer, text), 12, target.stop_token_ids) for text in texts]
    plain = autoregressive_decode(target, requests, concurrency=concurrency)
    drafted = speculative_decode(
        *(target, module.drafter, module.corrector, module.draft_head, requests),
        mask_token_id=target.spec.mask_token_id,
        concurrency=concurrency,
        block_size=block,
    )
    return plain, drafted


def test_bench_reports_what_decoding_gives(
    run_cli: Run, last: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench"
    words = ("bench", "--checkpoint", last, "--prompts", prompts, "--concurrency", 1, 3, "--block-sizes", 2, 4)
    words += ("--max-new-tokens", 12, "--baseline", "hf-generate", "--out", out, "--device=cpu")
    run_cli(*words, "--profile")
    printed = capsys.readouterr().out
    report = json.loads((out / "bench.json").read_text())
    cells = {(c["method"], c["block_size"], c["concurrency"]): c for c in report["cells"]}
    label = "v/last"
    methods = [("AR", None), ("hf-generate", None), (label, 2), (label, 4)]
    assert set(cells) == {(name, block, rows) for name, block in methods for rows in (1, 3)}
    module = load_module(str(last), "cpu")
    for block in (2, 4):
        for rows in (1, 3):
            plain, drafted = decoded(module, prompts, block, rows)
            cell = cells[label, block, rows]
            assert (cell["mat"], cell["mat_drafts"]) == (drafted.mat, drafted.mat_drafts)
            assert (cell["emitted"], cell["rounds"]) == (drafted.emitted, drafted.rounds)
            assert cell["mean_rows"] == drafted.rounds / drafted.steps
            assert cell["lossless"] == 1.0
            assert cells["AR", None, rows]["emitted"] == plain.emitted
            assert cell["speedup"] == pytest.approx(
                cell["tokens_per_second"] / cells["AR", None, rows]["tokens_per_second"]
            )
            assert cell["round_ms"]["total"] > cell["round_ms"]["verify"] > 0
            assert 0 < cell["itl_ms"]["p50"] <= cell["itl_ms"]["p99"]
            assert cell["ttft_ms"]["p50"] > 0
            assert set(cell["families"]) == {"add", "take"}
    # behind all others, in whose memory its model would count
    assert [c["method"] for c in report["cells"][-2:]] == ["hf-generate"] * 2
    for rows in (1, 3):
        assert cells["hf-generate", None, rows]["lossless"] == 1.0  # fp32, greedy: the same tokens
        assert cells["AR", None, rows]["mat"] is None
    text = (out / "bench.md").read_text()
    for cell in cells.values():
        name = cell["method"] if cell["block_size"] is None else f"{cell['method']}, B={cell['block_size']}"
        mat = "" if cell["mat"] is None else f"{cell['mat']:.2f}"
        start = (
            f"| {name} | {cell['concurrency']} | {cell['mean_rows']:.1f} | {mat} | {cell['tokens_per_second']:.1f} |"
        )
        assert start in text
    assert "4 prompts" in text
    assert text in printed
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    traces = sorted(path.name for path in out.glob("trace-*.json"))
    assert traces == ["trace-v-last-b2-c1-t0.json", "trace-v-last-b4-c1-t0.json"]
    names = {event["name"] for event in json.loads((out / traces[0]).read_text())["traceEvents"] if "name" in event}
    assert {"draft", "correct", "verify"} <= names
    assert "of the round" in printed
    # a rerun continues: everything is there, nothing is decoded again
    before = (out / "requests.jsonl").read_text()
    run_cli(*words, "--resume")
    assert (out / "requests.jsonl").read_text() == before
    assert json.loads((out / "bench.json").read_text())["cells"] == report["cells"]
    # in TensorBoard a run per method with the concurrency as its step, once although written twice
    for (method, block, _), cell in cells.items():
        run = method if block is None else f"v_last_B={block}"
        events = EventAccumulator(str(out / "tensorboard" / run))
        events.Reload()
        found = {event.step: event.value for event in events.Scalars("bench/tokens_per_second")}
        assert len(events.Scalars("bench/tokens_per_second")) == 2
        assert found[cell["concurrency"]] == pytest.approx(cell["tokens_per_second"], rel=1e-6)
        assert ("bench/mat" in events.Tags()["scalars"]) == (block is not None)
    drawn = EventAccumulator(str(out / "tensorboard"))
    drawn.Reload()
    assert len(drawn.Images("bench/throughput")) == 1


def test_sampling_has_no_losslessness_and_a_panel_of_its_own(
    run_cli: Run, last: Path, prompts: Path, tmp_path: Path
) -> None:
    run_cli(
        *("bench", "--checkpoint", last, "--prompts", prompts, "--concurrency=2", "--temperature", 0, 1),
        *("--max_new_tokens=6", "--device=cpu"),
    )
    report = json.loads((tmp_path / "runs/bench/bench.json").read_text())
    folders = {path.name for path in (tmp_path / "runs/bench/tensorboard").iterdir() if path.is_dir()}
    assert folders == {f"{name}_temperature_{t}" for name in ("AR", "v_last_B=4") for t in (0, 1)}
    assert [(c["method"], c["temperature"], c["lossless"]) for c in report["cells"]] == [
        ("AR", 0, None), ("v/last", 0, 1.0), ("AR", 1, None), ("v/last", 1, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--concurrency=[9]"], "concurrency 9 needs at least as many prompts, but there are 4"),
        (["--concurrency=[0]"], "concurrency [0]"),
        (["--concurrency", "1", "1"], "named once"),
        (["--block-sizes=9", "--concurrency=1"], "block size 9 does not fit"),
        (["--num-prompts=5", "--concurrency=1"], "num_prompts 5 must be in 1..4"),
        (["--max-new-tokens=1"], "max_new_tokens must be at least 2"),
        (["--temperature=-1"], "temperature must be 0"),
        (["--prompts=gone.jsonl"], "no prompts at gone.jsonl"),
        (["--prompts=embedded:tset"], "tset"),
        (["--baseline=vllm"], "hf-generate"),
        (["--checkpoint=gone.ckpt", "--concurrency=1"], "no checkpoint at gone.ckpt"),
    ],
)
def test_refuses(
    run_cli: Run, last: Path, prompts: Path, capsys: pytest.CaptureFixture[str], words: list[str], match: str
) -> None:
    options = {"--checkpoint": last, "--prompts": prompts}
    given = [f"{k}={v}" for k, v in options.items() if not any(word.startswith(k) for word in words)]
    with pytest.raises((Exception, SystemExit)) as caught:
        run_cli("bench", *given, *words)
    assert match in f"{caught.value}\n{capsys.readouterr().err}"


def test_refuses_a_long_prompt_of_the_last_share_at_once(run_cli: Run, last: Path, tmp_path: Path) -> None:
    texts = ["add one"] * 15 + ["add one " * 200]
    Path("long.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    with pytest.raises(ValueError, match=r"request 15: prompt of \d+ .* exceeds the 256 positions"):
        run_cli("bench", "--checkpoint", last, "--prompts=long.jsonl", "--concurrency=1", "--out=never")
    assert not Path("never").exists()


def test_refuses_an_earlier_run_and_other_options(run_cli: Run, last: Path, prompts: Path) -> None:
    words = ("bench", "--checkpoint", last, "--prompts", prompts, "--concurrency=1", "--max_new_tokens=4")
    run_cli(*words)
    with pytest.raises(FileExistsError, match="--resume"):
        run_cli(*words)
    with pytest.raises(ValueError, match="seed 0, not 1"):
        run_cli(*words, "--resume", "--seed=1")
    # it would be measured alone, against the baseline of another hour
    with pytest.raises(ValueError, match=r"block_sizes \{'v/last': \[4\]\}, not \{'v/last': \[2, 4\]\}"):
        run_cli(*words, "--resume", "--block-sizes", 2, 4)


@pytest.mark.parametrize("command", ["bench", "tune", "generate", "regenerate"])
def test_options_reach_the_chat_template(
    command: str, run_cli: Run, last: Path, prompts: Path, tiny_target: Path, tmp_path: Path
) -> None:
    target = tmp_path / "strict"
    shutil.copytree(tiny_target, target)
    template = target / "chat_template.jinja"
    template.write_text("{% if mood %}{{ raise_exception('mood ' + mood) }}{% endif %}" + template.read_text())
    words: tuple[object, ...] = ("--prompts", prompts, "--out", tmp_path / "out", "--concurrency", 1)
    if command == "generate":
        words = ("--prompt", "add one")
    if command != "regenerate":
        words += ("--checkpoint", last)
    with pytest.raises((TemplateError, ValueError), match="mood calm"):
        run_cli(command, *words, "--target", target, "--device=cpu", "--template_options", '{"mood": "calm"}')
