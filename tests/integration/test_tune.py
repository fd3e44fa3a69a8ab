"""Tuning through the command line, on tiny checkpoints, and what the policy does elsewhere."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from test_fit import scalars

from specdraft.commands import encode_prompt, load_module
from specdraft.correctors import DCOCO, Corrector, DominoCorrector, MarkovCorrector, SelectorCorrector
from specdraft.decoding import (
    BlockPolicy,
    FixedBlock,
    PolicyFile,
    Request,
    RunningSurvival,
    StaticTable,
    autoregressive_decode,
    speculative_decode,
    with_threshold,
)
from specdraft.tune.candidates import default_blocks, survival_is_nested
from specdraft.types import TargetSpec

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


def tune_words(last: Path, prompts: Path, *more: object) -> tuple[object, ...]:
    words = ("tune", "--checkpoint", last, "--prompts", prompts, "--block-sizes", 2, 4, "--concurrency", 1, 3)
    return (*words, "--max-new-tokens", 10, "--out", "policy.yaml", "--device=cpu", "--repeats=2", *more)


def test_tune_and_its_policy(
    run_cli: Run, tiny_config: Path, last: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli(*tune_words(last, prompts))
    printed = capsys.readouterr().out
    file = PolicyFile.read("policy.yaml")
    assert (file.policy, file.made_for.checkpoint) == ("StaticTable", str(last))
    (table,) = file.tables
    assert not table.nested  # trained with the full block alone: survival is measured at both block sizes
    assert set(table.survival) == set(table.choices) == {"add", "take", "all"}
    assert {size: len(curve) for size, curve in table.survival["all"].items()} == {2: 1, 4: 3}
    assert set(table.latency) == {2, 4}
    assert all(set(levels) == {1, 3} and min(levels.values()) > 0 for levels in table.latency.values())
    module = load_module(str(last), "cpu")
    decoded = decode(module, prompts, FixedBlock(2), rows=3)
    assert table.mat("all", 2) == pytest.approx(decoded.mat, abs=1e-5)

    folder = tmp_path / "policy-tune"
    report = json.loads((folder / "tune.json").read_text())
    (check,) = report["checks"]
    pairs = {(w, c) for w in ("add", "take", "all") for c in (1, 3)}
    assert {(a["workload"], a["concurrency"]) for a in check["assessments"]} == pairs
    for a in check["assessments"]:
        levels = next(
            g for g in check["measured"] if (g["workload"], g["concurrency"]) == (a["workload"], a["concurrency"])
        )
        rates = {int(size): rate for size, rate in levels["tokens_per_second"].items()}
        assert a["chosen"] == table.choices[a["workload"]][a["concurrency"]]
        assert a["predicted"] == pytest.approx(
            table.tokens_per_second(a["workload"], a["chosen"], a["concurrency"]), rel=1e-2
        )
        assert (a["measured"], a["best_measured"]) == (rates[a["chosen"]], max(rates.values()))
        assert a["regret"] == pytest.approx(1 - a["measured"] / a["best_measured"])
        assert a["drift"] > 0
        assert a["error_at_equal_speed"] == pytest.approx(a["predicted"] / a["drift"] / a["measured"] - 1)
        assert a["gain"] == pytest.approx(a["measured"] / rates[a["fixed"]] - 1)
        mats = next(g for g in check["mat"] if (g["workload"], g["concurrency"]) == (a["workload"], a["concurrency"]))
        seconds = next(
            g for g in check["round_seconds"] if (g["workload"], g["concurrency"]) == (a["workload"], a["concurrency"])
        )
        chosen = str(a["chosen"])
        assert a["measured"] == pytest.approx(a["concurrency"] * mats["mat"][chosen] / seconds["round_seconds"][chosen])
    assert set(check["policies"]) == {"StaticTable", "RunningSurvival"}
    text = (folder / "tune.md").read_text()
    assert text in printed
    assert "chosen block size" in text
    assert "against the exhaustive grid" in text
    assert (folder / "tune.png").read_bytes().startswith(b"\x89PNG")

    # the speed of the machine was measured with the latencies, in the same turns
    parts = [json.loads(line).get("cell") for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert {f"AR/c{rows}/t0/latency-{turn}" for rows in (1, 3) for turn in (0, 1)} <= set(parts)

    # a rerun continues: nothing is measured again
    before = (folder / "requests.jsonl").read_text()
    run_cli(*tune_words(last, prompts, "--resume", "--adaptive"))
    assert (folder / "requests.jsonl").read_text() == before
    assert PolicyFile.read("policy.yaml").policy == "RunningSurvival"

    # the other commands take it, without a warning where it was made for them
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="policy")
        words = ("generate", "--checkpoint", last, "--policy", "policy.yaml", "--device=cpu", "--max_new_tokens=10")
        run_cli(*words, "--prompt", "add one and two")
        assert "output equal to AR" in capsys.readouterr().out
        words = ("bench", "--checkpoint", last, "--prompts", prompts, "--concurrency", 2, "--block-sizes", 4)
        run_cli(*words, "--policy", "policy.yaml", "--max-new-tokens=10", "--device=cpu", "--out", "bench")
    cells = json.loads(Path("bench/bench.json").read_text())["cells"]
    assert [(c["policy"], c["block_size"], c["lossless"]) for c in cells] == [
        (None, None, None), (None, 4, 1.0), ("policy.yaml", 4, 1.0),
    ]  # fmt: skip
    assert "v/last, policy.yaml" in Path("bench/bench.md").read_text()
    with pytest.warns(UserWarning, match="was made for checkpoint .*last.ckpt .*, not the weights of this run") as seen:
        run_cli("fit", "--config", callback_with(tiny_config, "policy: policy.yaml"), "--trainer.logger.version=p")
    assert len([w for w in seen if "was made for" in str(w.message)]) == 1

    # a prompt is of the kind that it is said to be
    kinds = {name: dict.fromkeys(levels, 2 if name == "add" else 4) for name, levels in table.choices.items()}
    PolicyFile("StaticTable", file.made_for, (replace(table, choices=kinds),)).write(Path("policy.yaml"))
    words = ("generate", "--checkpoint", last, "--policy", "policy.yaml", "--device=cpu", "--max_new_tokens=10")
    capsys.readouterr()
    for workload, size in ((("--workload", "add"), 2), ((), 4)):
        run_cli(*words, *workload, "--prompt", "add one and two")
        assert f"block size: {size} in" in capsys.readouterr().out

    # the callback decodes by it: every block has the size that the policy says
    smaller = replace(table, choices={name: dict.fromkeys(levels, 2) for name, levels in table.choices.items()})
    PolicyFile("StaticTable", file.made_for, (smaller,)).write(Path("policy.yaml"))
    config = callback_with(tiny_config, "policy: policy.yaml")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="policy")
        run_cli("validate", "--config", config, "--ckpt_path", last, "--trainer.logger.version=q")
    values = scalars(tmp_path / "runs/tiny/q")
    assert (values["decode/mean_block_size"], values["decode/lossless"]) == ([2.0], [1.0])


def callback_with(config: Path, option: str) -> Path:
    path = config.with_name("with-policy.yaml")
    path.write_text(config.read_text().replace("{num_prompts: 3,", f"{{num_prompts: 3, {option},"))
    return path


def decode(module: Any, prompts: Path, policy: BlockPolicy | None, rows: int, corrector: Any = None) -> Any:
    target = module.target
    lines = [json.loads(line) for line in prompts.read_text().splitlines()]
    requests = [
        Request(encode_prompt(target.tokenizer, line["prompt"]), 10, target.stop_token_ids, line["family"])
        for line in lines
    ]
    if policy is None:
        return autoregressive_decode(target, requests, concurrency=rows)
    return speculative_decode(
        *(target, module.drafter, corrector or module.corrector, module.draft_head, requests),
        mask_token_id=target.spec.mask_token_id,
        concurrency=rows,
        policy=policy,
    )


class Scrambled(BlockPolicy):
    sizes = (2, 3, 4)
    told = 0

    def choose(self, live: Any, rows: int) -> int:
        self.told += 1
        return self.sizes[self.told * 7 % 3]


def test_every_policy_is_lossless_on_a_model(run_cli: Run, last: Path, prompts: Path) -> None:
    run_cli(*tune_words(last, prompts, "--check=false", "--temperature", 0, 1))
    assert json.loads(Path("policy-tune/tune.json").read_text())["checks"] == []
    assert "/check-" not in Path("policy-tune/requests.jsonl").read_text()
    file = PolicyFile.read("policy.yaml")
    assert [table.temperature for table in file.tables] == [0, 1]
    module = load_module(str(last), "cpu")
    table = file.tables[0]
    policies = [StaticTable({"all": {1: 4, 2: 2}, "add": {1: 3}}), RunningSurvival(table, window=2, prior=0.1)]
    policies += [FixedBlock(size) for size in (2, 3, 4)] + [Scrambled()] + [StaticTable.from_tables(table)]
    for rows in (1, 3):
        plain = [r.tokens for r in decode(module, prompts, None, rows).results]
        for policy in policies:
            assert [r.tokens for r in decode(module, prompts, policy, rows).results] == plain, type(policy).__name__


CORRECTORS: dict[str, Callable[[TargetSpec], Corrector]] = {
    "vanilla": lambda spec: MarkovCorrector(spec, "vanilla", rank=6),
    "gated": lambda spec: MarkovCorrector(spec, "gated", rank=6),
    "rnn": lambda spec: MarkovCorrector(spec, "rnn", rank=6),
    "rated": lambda spec: MarkovCorrector(spec, "vanilla", rank=6, confidence=True),
    "domino": lambda spec: DominoCorrector(spec, hidden=7, rank=6),
    "selector": lambda spec: SelectorCorrector(spec, candidates=5, rank=6),
    "dcoco": lambda spec: DCOCO(spec, candidates=5),
}


def test_blocks_of_changing_sizes_are_lossless_with_every_corrector(last: Path, prompts: Path) -> None:
    module = load_module(str(last), "cpu")
    plain = {rows: [r.tokens for r in decode(module, prompts, None, rows).results] for rows in (1, 3)}
    drafted = {}
    for name, make in CORRECTORS.items():
        torch.manual_seed(5)
        corrector = make(module.target.spec)
        corrector.bind(module.target.embed)
        for parameter in corrector.parameters():
            parameter.data = 0.5 * torch.randn(parameter.shape)
        cut = with_threshold(corrector, 0.5 if name == "rated" else 0.0)
        for rows in (1, 3):
            for policy in (Scrambled(), FixedBlock(2), StaticTable({"all": {1: 3, 3: 2}})):
                found = [r.tokens for r in decode(module, prompts, policy, rows, cut).results]
                assert found == plain[rows], (name, rows, type(policy).__name__)
        drafted[name] = decode(module, prompts, Scrambled(), 3, cut).mat
    assert len(set(drafted.values())) > 1  # they do correct


def test_mixed_horizons_and_several_depths(run_cli: Run, tiny_config: Path, prompts: Path, tmp_path: Path) -> None:
    mixed = "--model.objective.init_args.inclusion={class_path: MixedHorizon, init_args: {horizons: [2, 4]}}"
    for depth in (1, 2):
        run_cli(
            *("fit", "--config", tiny_config, "--trainer.max_steps=1", f"--trainer.logger.version=d{depth}"),
            *(mixed, f"--model.drafter.init_args.num_layers={depth}"),
        )
    paths = [tmp_path / f"runs/tiny/d{depth}/checkpoints/last.ckpt" for depth in (2, 1)]
    module = load_module(str(paths[0]), "cpu")
    assert survival_is_nested(module)
    assert default_blocks(module) == [2, 3, 4]
    words = ("tune", "--checkpoint", *paths, "--prompts", prompts, "--concurrency", 2, "--max-new-tokens", 8)
    run_cli(*words, "--out", "p.yaml", "--device=cpu", "--repeats=1", "--check=false")
    report = json.loads(Path("p-tune/tune.json").read_text())
    found = report["checkpoints"]
    assert {c["depth"] for c in found} == {1, 2}
    assert found[0]["score"] >= found[1]["score"]
    made_for = yaml.safe_load(Path("p.yaml").read_text())["made_for"]
    assert made_for["checkpoint"] == found[0]["path"]
    curves = PolicyFile.read("p.yaml").tables[0].survival["all"]
    assert curves[2] == curves[3][:1] == curves[4][:1]
    # the loop without drafts takes turns with every checkpoint, not with the first alone
    cells = {json.loads(line).get("cell") for line in Path("p-tune/requests.jsonl").read_text().splitlines()}
    plain = sorted(cell for cell in cells if cell and cell.startswith("AR/c2/t0/latency-0"))
    assert len(plain) == 2
    assert plain[0] == "AR/c2/t0/latency-0"


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--block-sizes=9"], "block size 9 does not fit"),
        (["--prompts=empty.jsonl"], "empty.jsonl holds no prompts"),
        (["--repeats=0"], "repeats must be at least 1"),
        (["--out=."], "is a folder"),
        (["--concurrency=0"], "concurrency [0]"),
    ],
)
def test_tune_refuses(
    run_cli: Run, last: Path, prompts: Path, capsys: pytest.CaptureFixture[str], words: list[str], match: str
) -> None:
    Path("empty.jsonl").write_text("\n")
    options = {"--checkpoint": last, "--prompts": prompts, "--out": "policy.yaml"}
    given = [f"{k}={v}" for k, v in options.items() if not any(word.startswith(k) for word in words)]
    with pytest.raises((Exception, SystemExit)) as caught:
        run_cli("tune", *given, *words)
    assert match in f"{caught.value}\n{capsys.readouterr().err}"


def test_a_policy_for_something_else(
    run_cli: Run, tiny_config: Path, last: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli(*tune_words(last, prompts, "--check=false", "--repeats=1"))
    words = ("generate", "--prompt=add one", "--device=cpu", "--max_new_tokens=4", "--policy=policy.yaml")
    run_cli("fit", "--config", tiny_config, "--trainer.max_steps=1", "--trainer.logger.version=w")
    other = last.parents[2] / "w/checkpoints/last.ckpt"
    with pytest.warns(UserWarning, match=rf"made for checkpoint {last} \(\w+\), not {other} \(\w+\)"):
        run_cli(*words, "--checkpoint", other)
    assert "output equal to AR" in capsys.readouterr().out
    values = yaml.safe_load(Path("policy.yaml").read_text())
    values["made_for"]["device"] = "cuda H200"
    Path("policy.yaml").write_text(yaml.safe_dump(values))
    with pytest.warns(UserWarning, match="made for device cuda H200, not cpu"):
        run_cli(*words, "--checkpoint", last)
    run_cli(
        *("fit", "--config", tiny_config, "--trainer.max_steps=1", "--trainer.logger.version=s"),
        "--model.drafter.init_args.block_size=3",
    )
    small = last.parents[2] / "s/checkpoints/last.ckpt"
    text = Path("policy.yaml").read_text()
    values["tables"][0]["choices"] = {"all": {1: 4}}
    Path("policy.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ValueError, match=r"chooses block sizes up to 4, but the drafter of .* was trained with 3"):
        run_cli(*words, "--checkpoint", small)
    with pytest.raises(ValueError, match=r"block size 4 does not fit .*, whose drafter takes 2\.\.3"):
        run_cli(
            *("bench", "--checkpoint", small, "--prompts", prompts, "--concurrency=1"),
            *("--policy=policy.yaml", "--device=cpu", "--out=never"),
        )
    assert not Path("never").exists()
    Path("policy.yaml").write_text(text)
    with pytest.raises(ValueError, match="both given"):
        run_cli(*words, "--checkpoint", last, "--block_size=2")
    with pytest.raises(FileNotFoundError, match=r"no policy at gone\.yaml"):
        run_cli(*words[:-1], "--policy=gone.yaml", "--checkpoint", last)
    config = callback_with(tiny_config, "policy: gone.yaml")
    with pytest.raises((Exception, SystemExit)) as caught:
        run_cli("fit", "--config", config, "--trainer.logger.version=g")
    assert "no policy at gone.yaml" in f"{caught.value}\n{capsys.readouterr().err}"
