"""Training through the command line: fit, validate, test, resume, checkpoints."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import specdraft.callbacks.provenance
from specdraft.packing import packed_from_rows
from specdraft.runs import read_provenance

Run = Callable[..., None]


def checkpoint(folder: Path, name: str) -> dict[str, Any]:
    return torch.load(folder / "runs/tiny/v/checkpoints" / name, weights_only=True)


def scalars(folder: Path) -> dict[str, list[float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_fit_logs_decodes_and_saves(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config)
    folder = tmp_path / "runs/tiny/v"
    values = scalars(folder)
    for tag in ("train/loss", "val/loss", "val/mat", "val/accept_at/1", "val/survival_at/3", "val/mat_family/add"):
        assert tag in values, tag
    for tag in ("mat", "speedup", "tokens_per_second", "ar_tokens_per_second", "round_ms/verify", "accept_at/3"):
        assert f"decode/{tag}" in values, tag
    assert values["decode/lossless"] == [1.0, 1.0]
    assert all(mat >= 1 for mat in values["decode/mat"])
    assert json.loads((folder / "provenance.json").read_text())["versions"]["torch"] == torch.__version__
    assert json.loads((folder / "provenance.json").read_text())["packed_from_rows"] == packed_from_rows()
    assert (folder / "config.yaml").exists()
    for name in ("best.ckpt", "last.ckpt"):
        found = checkpoint(tmp_path, name)
        assert all(key.startswith(("drafter.", "corrector.", "draft_token_ids")) for key in found["state_dict"])
        assert found["specdraft"]["drafter"]["block_size"] == 4
        assert found["specdraft"]["spec"]["taps"] == [0, 2]


def test_two_ways_of_decoding_under_autocast(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    second = (
        "    - class_path: SpeculativeDecoding\n      init_args: {name: sampled, temperature: 1.0, num_prompts: 1}\n"
    )
    text = tiny_config.read_text()
    tiny_config.write_text(text.replace("    - class_path: Provenance", second + "    - class_path: Provenance"))
    # the target keeps its own precision: what it is asked for and what its logits become are float32
    soft = ("--model.objective.init_args.prediction=KLDivergence", "--model.corrector=MarkovCorrector")
    run_cli(
        *("fit", "--config", tiny_config, *soft, "--model.corrector.confidence=true"),
        *("--trainer.precision=bf16-mixed", "--trainer.max_steps=2", "--trainer.val_check_interval=2"),
    )
    folder = tmp_path / "runs/tiny/v"
    values = scalars(folder)
    assert values["decode/lossless"] == [1.0]
    assert (values["decode/num_prompts"], values["sampled/num_prompts"]) == ([3.0], [1.0])
    assert "sampled/lossless" not in values
    assert sorted(path.name for path in (folder / "decoded").iterdir()) == ["sampled-val-2.csv", "val-2.csv"]


def test_fused_optimizer_clips_under_autocast(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    """As the recipes for large targets do; Lightning refuses it wherever an optimiser could undo a loss scale."""
    run_cli(
        *("fit", "--config", tiny_config, "--model.optimizer=torch.optim.AdamW", "--model.optimizer.fused=true"),
        *("--trainer.precision=bf16-mixed", "--trainer.gradient_clip_val=1.0", "--trainer.max_steps=2"),
        "--trainer.val_check_interval=2",
    )
    assert (tmp_path / "runs/tiny/v/checkpoints/last.ckpt").is_file()


def test_a_run_that_goes_on_keeps_what_it_was_made_with_before(
    run_cli: Run, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, folder = tmp_path / "runs/tiny/v/checkpoints/last.ckpt", tmp_path / "runs/tiny/v"
    for turn, steps in enumerate((3, 6, 9)):
        monkeypatch.setattr(specdraft.callbacks.provenance, "_cpu", lambda turn=turn: f"processor {turn}")
        again = ("--ckpt_path", last) if turn else ()
        run_cli("fit", "--config", tiny_config, f"--trainer.max_steps={steps}", *again)
    facts = json.loads((folder / "provenance.json").read_text())
    assert [(part["cpu"], part.get("from_step")) for part in facts["earlier"]] == [
        ("processor 0", None),
        ("processor 1", 3),
    ]
    assert (facts["cpu"], facts["from_step"]) == ("processor 2", 6)
    events = EventAccumulator(str(folder))
    events.Reload()
    logged = [event.step for event in events.Scalars("decode/mat")]
    assert [read_provenance(folder, step)["cpu"] for step in logged] == [f"processor {turn}" for turn in range(3)]


def test_a_resume_that_fails_leaves_the_provenance(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config, "--trainer.max_steps=3")
    kept = (tmp_path / "runs/tiny/v/provenance.json").read_text()
    damaged = tmp_path / "damaged.ckpt"
    damaged.write_bytes(b"no checkpoint")
    with pytest.raises(pickle.UnpicklingError):
        run_cli("fit", "--config", tiny_config, "--ckpt_path", damaged)
    assert (tmp_path / "runs/tiny/v/provenance.json").read_text() == kept


def test_validate_and_test_reload_what_was_trained(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli("fit", "--config", tiny_config)
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    fitted = scalars(tmp_path / "runs/tiny/v")["val/loss"][-1]
    for command in ("validate", "test"):
        run_cli(command, "--config", tiny_config, "--ckpt_path", last, f"--trainer.logger.version={command}")
        again = scalars(tmp_path / "runs/tiny" / command)
        assert again["val/loss"][-1] == pytest.approx(fitted, rel=1e-5)
        facts = json.loads((tmp_path / "runs/tiny" / command / "provenance.json").read_text())
        assert facts["measured"] == {"path": str(last), "step": 6}
    assert "measured" not in json.loads((tmp_path / "runs/tiny/v/provenance.json").read_text())
    capsys.readouterr()
    run_cli("compare", "runs/tiny/validate", "runs/tiny/v", "--format", "json")  # folders without their option
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["tiny/validate"]["step"] == 6
    assert rows["tiny/v"]["decode/mat"] == pytest.approx(rows["tiny/validate"]["decode/mat"], rel=1e-6)


@pytest.mark.parametrize(("stop", "averaged"), [(2, False), (5, False), (4, True)])
def test_resume_equals_an_uninterrupted_run(
    run_cli: Run, tiny_config: Path, tmp_path: Path, stop: int, averaged: bool
) -> None:
    text = tiny_config.read_text()
    average = "    - class_path: lightning.pytorch.callbacks.EMAWeightAveraging\n"
    average += "      init_args: {decay: 0.6, use_buffers: false}\n"
    tiny_config.write_text(
        text.replace("tap_norm: true}", "tap_norm: true, dropout: 0.1}").replace(
            "    - class_path: Provenance\n", "    - class_path: Provenance\n" + average * averaged
        )
    )
    run_cli("fit", "--config", tiny_config, "--trainer.logger.version=whole")
    # the schedule knows the whole run, so an interruption is simulated by raising, not by a smaller max_steps
    from lightning.pytorch import Callback

    class Interrupt(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == stop:
                raise RuntimeError("pulled the plug")

    import specdraft.cli as cli

    class Interrupted(cli.SpecDraftCLI):
        def _instantiate_trainer(self, config: Any, callbacks: Any) -> Any:
            return super()._instantiate_trainer(config, [*callbacks, Interrupt()])

    with pytest.raises(RuntimeError, match="pulled the plug"):
        Interrupted(args=["fit", "--config", str(tiny_config)])
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == stop
    run_cli("fit", "--config", tiny_config, "--ckpt_path", last)
    whole = torch.load(tmp_path / "runs/tiny/whole/checkpoints/last.ckpt", weights_only=True)
    resumed = torch.load(last, weights_only=True)
    assert resumed["global_step"] == whole["global_step"] == 6
    states = ["state_dict", *(["current_model_state"] if averaged else [])]  # averages, and what is trained
    for state in states:
        for key, value in whole[state].items():
            torch.testing.assert_close(resumed[state][key], value, rtol=0, atol=0)
    if averaged:
        name = "drafter.fc.weight"
        assert not torch.equal(whole["state_dict"][name], whole["current_model_state"][name])
        assert resumed["averaging_state"] == whole["averaging_state"]


@pytest.mark.parametrize(("accumulate", "stop", "every"), [(1, 2, 6), (2, 4, 6), (2, 5, 1)])
def test_sigterm_saves_whole_steps(
    run_cli: Run, tiny_config: Path, tmp_path: Path, accumulate: int, stop: int, every: int
) -> None:
    """The signal comes in batch ``stop``, with which step 2 is complete, or which belongs to step 3."""
    text = tiny_config.read_text().replace("  callbacks:\n", "  callbacks:\n    - class_path: SaveOnSigterm\n")
    text = text.replace("tap_norm: true}", "tap_norm: true, dropout: 0.1}")
    tiny_config.write_text(text.replace("every_n_train_steps: 1,", f"every_n_train_steps: {every},"))
    words = ("fit", "--config", tiny_config, f"--trainer.accumulate_grad_batches={accumulate}")
    words += ("--trainer.val_check_interval=6",)
    run_cli(*words, "--trainer.logger.version=whole")
    from lightning.pytorch import Callback

    class Terminated(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, place: int) -> None:
            if place == stop - 1 and trainer.current_epoch == 0:
                os.kill(os.getpid(), signal.SIGTERM)

    import specdraft.cli as cli

    class Watched(cli.SpecDraftCLI):
        def _instantiate_trainer(self, config: Any, callbacks: Any) -> Any:
            return super()._instantiate_trainer(config, [*callbacks, Terminated()])

    with pytest.raises(SystemExit):
        Watched(args=[str(word) for word in words])
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 2
    run_cli(*words, "--ckpt_path", last)
    whole, resumed = (
        torch.load(tmp_path / f"runs/tiny/{name}/checkpoints/last.ckpt", weights_only=True) for name in ("whole", "v")
    )
    assert resumed["global_step"] == whole["global_step"] == 6
    for key, value in whole["state_dict"].items():
        assert torch.equal(resumed["state_dict"][key], value), key


def test_draft_vocabulary_is_chosen_stored_and_lossless(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config, "--model.draft_vocab_size=12")
    ids = checkpoint(tmp_path, "last.ckpt")["state_dict"]["draft_token_ids"]
    assert ids.shape == (12,)
    assert (ids.diff() > 0).all()
    assert scalars(tmp_path / "runs/tiny/v")["decode/lossless"] == [1.0, 1.0]


def test_accumulation_equals_one_large_batch(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    # 18 training rows: batches of 3 accumulated twice see the same rows per step as batches of 6
    fixed = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--trainer.gradient_clip_val=null"]
    fixed += ["--model.objective.init_args.num_anchors=64"]  # every anchor, so that both runs draw the same
    run_cli("fit", "--config", tiny_config, *fixed, "--data.init_args.batch_size=6", "--trainer.logger.version=big")
    run_cli(
        "fit", "--config", tiny_config, *fixed, "--trainer.accumulate_grad_batches=2", "--trainer.val_check_interval=4"
    )
    big = torch.load(tmp_path / "runs/tiny/big/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    small = checkpoint(tmp_path, "last.ckpt")["state_dict"]
    for key, value in big.items():
        torch.testing.assert_close(small[key], value, rtol=1e-3, atol=2e-4)


def test_frozen_drafter_without_corrector_has_nothing_to_train(run_cli: Run, tiny_config: Path) -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        run_cli("fit", "--config", tiny_config, "--model.train_drafter=false")


def test_warm_start_takes_the_weights(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config)
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    before = torch.load(last, weights_only=True)["state_dict"]
    run_cli(
        *("fit", "--config", tiny_config, "--model.init_from", last, "--trainer.logger.version=warm"),
        *("--model.optimizer.init_args.lr=0.0", "--model.optimizer.init_args.weight_decay=0.0"),
    )
    after = torch.load(tmp_path / "runs/tiny/warm/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, rtol=0, atol=0)


def test_generate_prints_text_and_statistics(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli("fit", "--config", tiny_config)
    capsys.readouterr()
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    run_cli("generate", "--checkpoint", last, "--prompt", "add one and two", "--max_new_tokens=10")
    out = capsys.readouterr().out
    assert "output equal to AR" in out
    assert "accepted per round:" in out


def test_throughput_is_logged(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    more = ("--trainer.callbacks+=TrainingThroughput", "--trainer.callbacks.peak_tflops=1")
    run_cli("fit", "--config", tiny_config, *more, "--trainer.accumulate_grad_batches=2", "--trainer.max_steps=4")
    values = scalars(tmp_path / "runs/tiny/v")
    for name in ("tokens", "anchors", "supervised_slots"):
        assert len(values[f"train/{name}_per_second"]) == 4
        assert min(values[f"train/{name}_per_second"]) > 0
    slots, seconds = values["train/supervised_slots"][0], values["train/step_ms"][0] / 1e3
    assert values["train/supervised_slots_per_second"][0] == pytest.approx(slots / seconds, rel=1e-3)
    assert all(0 < wait < step for wait, step in zip(values["train/data_ms"], values["train/step_ms"], strict=True))
    assert all(0 < share < 1 for share in values["train/mfu"])


def test_ema_and_soft_labels(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli(
        *("fit", "--config", tiny_config),
        *(
            "--trainer.callbacks+=lightning.pytorch.callbacks.EMAWeightAveraging",
            "--trainer.callbacks.use_buffers=false",
        ),
        "--model.objective.init_args.prediction=KLDivergence",
    )
    assert "val/mat" in scalars(tmp_path / "runs/tiny/v")


def test_a_run_starts_without_warnings_of_others(tiny_config: Path, tmp_path: Path) -> None:
    """As typed: words on the command line, which Lightning would complain about."""
    words = ("fit", "--config", str(tiny_config), "--trainer.max_steps=1", "--trainer.limit_val_batches=0")
    done = subprocess.run(
        [sys.executable, "-m", "specdraft", *words], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "args parameter" not in done.stderr
    assert "deprecated" not in done.stderr
