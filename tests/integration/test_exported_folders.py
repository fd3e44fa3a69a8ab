"""From a run through the command line to an exported folder, and back into every command that takes one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specdraft.commands import load_module
from specdraft.module import DraftingModule
from specdraft.targets import HFTarget, TargetConfig, loading_onto

ABLATIONS = Path(__file__).parents[2] / "experiments" / "ablations"
PLAIN = "--model.drafter.init_args.tap_norm=false"
SHIFTED = "--model.drafter.init_args.sample_from_anchor=true"
Run = Callable[..., None]


def test_export_decode_bench_and_train_on(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli("fit", "--config", tiny_config, PLAIN, "--trainer.max_steps=3")
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    out = tmp_path / "public"
    run_cli("export", "--checkpoint", last, "--format", "zlab", "--out", out)
    assert "slot i predicts the token at p+i, 3 drafts per round" in capsys.readouterr().out
    state = torch.load(last, weights_only=True)["state_dict"]
    for name, tensor in load_file(out / "model.safetensors").items():
        assert torch.equal(tensor, state[f"drafter.{name}"])
    run_cli("inspect", out)
    run_cli("inspect", last)
    text = capsys.readouterr().out
    assert text.count("(sample_from_anchor: false)") == 2
    assert "epoch" in text
    assert "global_step 3" in text
    assert "export zlab        possible" in text
    one, other = load_module(str(last), "cpu"), load_module(str(out), "cpu")
    hidden = torch.randn(1, 3, 32)
    assert torch.equal(one.draft_head(hidden), other.draft_head(hidden))
    assert one.target.spec == other.target.spec
    words = ("generate", "--prompt", "add one and two", "--max_new_tokens=6", "--device=cpu", "--color=false")
    run_cli(*words, "--checkpoint", last)
    answer = capsys.readouterr().out
    run_cli(*words, "--checkpoint", out)
    again = capsys.readouterr().out
    assert again.split("accepted per round")[0] == answer.split("accepted per round")[0]
    assert "output equal to AR" in again
    prompts = tmp_path / "mt.jsonl"
    prompts.write_text(json.dumps({"prompt": ["add one", "take two"]}) + "\n")
    run_cli(
        *("bench", "--checkpoint", last, out, "--suite=paper", "--sets", f"mt-bench={prompts}"),
        *("--max_new_tokens=4", "--device=cpu", "--out", tmp_path / "bench"),
    )
    report = json.loads((tmp_path / "bench/bench.json").read_text())
    assert [(c["temperature"], c["concurrency"], c["prompts"]) for c in report["cells"]] == [
        (0, 1, 2), (0, 1, 2), (0, 1, 2), (1, 1, 2), (1, 1, 2), (1, 1, 2),
    ]  # fmt: skip
    mine, theirs = (c["families"]["mt-bench"]["mat_prompt_mean"] for c in report["cells"][1:3])
    assert mine == theirs
    table = (tmp_path / "bench/paper.md").read_text()
    assert "| method | mt-bench | average |" in table
    assert f"/ {mine:.2f}" in table
    assert table in capsys.readouterr().out
    still = ("--model.optimizer.init_args.lr=0.0", "--model.optimizer.init_args.weight_decay=0.0")
    again_words = ("--model.init_from", out, *still, "--trainer.logger.init_args.name=again")
    run_cli("fit", "--config", tiny_config, PLAIN, "--trainer.max_steps=1", *again_words)
    trained = torch.load(tmp_path / "runs/again/v/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(trained[k], v) for k, v in state.items() if k.startswith("drafter."))
    with pytest.raises(ValueError, match="sample_from_anchor False, this run has True"):
        run_cli("fit", "--config", tiny_config, PLAIN, SHIFTED, *again_words, "--trainer.logger.version=w")


@pytest.mark.parametrize(
    ("overlay", "name"),
    [("markov", "deepspec"), ("rnn", "speculators"), ("domino", "zlab"), ("selector", "zlab"), ("dcoco", "dcoco")],
)
def test_every_corrector_finds_a_format(
    run_cli: Run, tiny_config: Path, tmp_path: Path, overlay: str, name: str
) -> None:
    config = ("--config", tiny_config, "--config", ABLATIONS / f"corrector_{overlay}.yaml")
    run_cli("fit", *config, PLAIN, SHIFTED, "--trainer.max_steps=2", "--trainer.val_check_interval=2")
    last = tmp_path / "runs" / f"corrector_{overlay}" / "v/checkpoints/last.ckpt"
    out = tmp_path / "public"
    run_cli("inspect", last)
    run_cli("export", "--checkpoint", last, "--format", name, "--out", out)
    one, other = load_module(str(last), "cpu"), load_module(str(out), "cpu")
    assert type(one.corrector) is type(other.corrector)
    assert one.corrector.candidates == other.corrector.candidates
    hidden, anchor = torch.randn(2, 4, 32), torch.tensor([7, 9])
    logits = one.draft_head(hidden)
    with torch.no_grad():
        tokens = [m.corrector.propose(hidden, logits, anchor, 0.0, None, m.draft_head).tokens for m in (one, other)]
    assert torch.equal(*tokens)


def test_refusals_reach_the_command_line(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config, "--trainer.max_steps=1", "--trainer.val_check_interval=1")
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    with pytest.raises(ValueError, match="tap_norm: the format has no norm per tap"):
        run_cli("export", "--checkpoint", last, "--format=zlab", "--out", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="no checkpoint at gone"):
        run_cli("export", "--checkpoint=gone", "--format=zlab", "--out", tmp_path / "out")
    with pytest.raises(ValueError, match="add --suite paper"):
        run_cli("bench", "--checkpoint", last, "--sets", "gsm8k")


def test_a_target_that_moved_is_named(
    run_cli: Run, tiny_config: Path, tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.conftest import save_tiny_target

    first, moved = tmp_path / "first", tmp_path / "moved"
    shutil.copytree(tiny_target, first)
    run_cli("fit", "--config", tiny_config, f"--model.target.path={first}", "--trainer.max_steps=1")
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    first.rename(moved)
    module = load_module(str(last), "cpu", str(moved))
    saved = torch.load(last, weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[key]) for key, value in module.state_dict().items())
    words = ("generate", "--prompt", "add one", "--max_new_tokens=4", "--device=cpu", "--checkpoint", last)
    run_cli(*words, "--target", moved)
    assert "output equal to AR" in capsys.readouterr().out
    other = save_tiny_target(tmp_path / "other", layers=5)
    with pytest.raises(ValueError, match="target num_layers"):
        load_module(str(last), "cpu", str(other))


def test_a_module_is_built_for_the_device_that_it_goes_to(
    run_cli: Run, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cli("fit", "--config", tiny_config, "--trainer.max_steps=1")
    asked, load = [], TargetConfig.load

    def noted(self: TargetConfig, device: torch.device) -> HFTarget:
        asked.append(device)  # decides what dtype "auto" means
        return load(self, torch.device("cpu"))

    monkeypatch.setattr(TargetConfig, "load", noted)
    with loading_onto("cuda"):
        DraftingModule.load_from_checkpoint(tmp_path / "runs/tiny/v/checkpoints/last.ckpt", map_location="cpu").target  # noqa: B018
    load_module(str(tmp_path / "runs/tiny/v/checkpoints/last.ckpt"), "cpu")
    assert asked == [torch.device("cuda"), torch.device("cpu")]
