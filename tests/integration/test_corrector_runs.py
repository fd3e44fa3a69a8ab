"""Every corrector through the command line: joint, on a frozen drafter, swapped, resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_fit import scalars

from specdraft.commands import load_module
from specdraft.correctors import DCOCO, MarkovCorrector, NoCorrector

ABLATIONS = Path(__file__).parents[2] / "experiments" / "ablations"
NAMES = ["none", "markov", "gated", "rnn", "domino", "selector", "dcoco"]
Run = Callable[..., None]


def overlay(name: str) -> tuple[str, Path]:
    return "--config", ABLATIONS / f"corrector_{name}.yaml"


def state(folder: Path, name: str, prefix: str = "") -> dict[str, torch.Tensor]:
    path = folder / "runs" / name / "v/checkpoints/last.ckpt"
    found: dict[str, Any] = torch.load(path, weights_only=True)["state_dict"]
    return {key: value for key, value in found.items() if key.startswith(prefix)}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_joint_run_of_every_overlay(run_cli: Run, tiny_config: Path, tmp_path: Path, name: str) -> None:
    draft = "--model.draft_vocab_size=24"  # a reduced draft vocabulary as in quickstart.yaml
    run_cli("fit", "--config", tiny_config, *overlay(name), draft)
    values = scalars(tmp_path / "runs" / f"corrector_{name}" / "v")
    for tag in ("val/mat", "val/base_mat", "val/oracle_prefix", "val/candidate_recall@1", "val/candidate_recall@16"):
        assert tag in values, tag
    for tag in ("train/base_loss", "val/base_loss", "decode/exposure_gap", "decode/round_ms/correct"):
        assert tag in values, tag
    assert values["decode/lossless"] == [1.0, 1.0]
    for mat, base, oracle in zip(values["val/mat"], values["val/base_mat"], values["val/oracle_prefix"], strict=True):
        assert 1 <= base <= oracle
        assert mat >= 1
        if name in ("none", "selector", "dcoco"):
            assert mat <= oracle
    gaps = [a - b for a, b in zip(values["val/mat"], values["decode/mat"], strict=True)]
    assert values["decode/exposure_gap"] == pytest.approx(gaps, abs=1e-5)
    if name == "none":
        assert values["val/mat"] == values["val/base_mat"]
        assert "train/corrector_loss" not in values
    else:
        assert "train/corrector_loss" in values


def test_corrector_on_a_frozen_drafter(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config)
    before = state(tmp_path, "tiny", "drafter.")
    start = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    base = scalars(tmp_path / "runs/tiny/v")
    frozen = ("--config", ABLATIONS / "frozen_drafter.yaml", "--model.init_from", start)
    for name in NAMES[1:]:
        run_cli("fit", "--config", tiny_config, *overlay(name), *frozen, "--trainer.max_steps=12")
        assert_equal(before, state(tmp_path, f"corrector_{name}", "drafter."))
        values = scalars(tmp_path / "runs" / f"corrector_{name}" / "v")
        assert values["val/base_mat"][-1] == pytest.approx(base["val/mat"][-1])
        assert values["val/base_loss"][-1] == pytest.approx(base["val/loss"][-1], rel=1e-5)
        assert values["val/loss"][-1] == pytest.approx(values["val/corrector_loss"][-1], rel=1e-5)
        assert values["val/loss"][-1] < values["val/loss"][0]
        assert values["decode/lossless"][-1] == 1.0


def test_frozen_drafter_needs_a_checkpoint(run_cli: Run, tiny_config: Path) -> None:
    with pytest.raises(ValueError, match="set init_from"):
        run_cli("fit", "--config", tiny_config, *overlay("markov"), "--model.train_drafter=false")


def test_warm_start_keeps_the_same_corrector_and_swaps_another(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config, *overlay("dcoco"))
    last = tmp_path / "runs/corrector_dcoco/v/checkpoints/last.ckpt"
    before = state(tmp_path, "corrector_dcoco")
    still = ("--model.optimizer.init_args.lr=0.0", "--model.optimizer.init_args.weight_decay=0.0")
    again = ("--model.init_from", last, *still)
    run_cli("fit", "--config", tiny_config, *overlay("dcoco"), *again, "--trainer.logger.init_args.name=same")
    assert_equal(before, state(tmp_path, "same"))
    run_cli("fit", "--config", tiny_config, *overlay("selector"), *again)
    assert_equal(state(tmp_path, "corrector_dcoco", "drafter."), state(tmp_path, "corrector_selector", "drafter."))
    small = "--model.corrector.init_args.hidden=32"
    run_cli("fit", "--config", tiny_config, *overlay("dcoco"), small, *again, "--trainer.logger.init_args.name=small")
    assert_equal(state(tmp_path, "corrector_dcoco", "drafter."), state(tmp_path, "small", "drafter."))


@pytest.mark.parametrize("name", NAMES[1:])
def test_checkpoint_round_trip(run_cli: Run, tiny_config: Path, tmp_path: Path, name: str) -> None:
    run_cli("fit", "--config", tiny_config, *overlay(name))
    folder = tmp_path / "runs" / f"corrector_{name}"
    last = folder / "v/checkpoints/last.ckpt"
    fitted = scalars(folder / "v")
    again = ("validate", "--config", tiny_config, *overlay(name), "--ckpt_path", last)
    run_cli(*again, "--trainer.logger.version=again")
    values = scalars(folder / "again")
    for tag in ("val/loss", "val/mat", "val/base_mat", "decode/mat"):
        assert values[tag][-1] == pytest.approx(fitted[tag][-1], rel=1e-5), tag
    module = load_module(str(last), "cpu")
    assert_equal(
        state(tmp_path, f"corrector_{name}", "corrector."),
        {f"corrector.{key}": value for key, value in module.corrector.state_dict().items()},
    )
    # through the command line the checkpoint's own corrector is used; code may still pair them wrongly
    module.make_corrector, module.drafter = NoCorrector, None  # type: ignore[assignment]
    with pytest.raises(ValueError, match="corrector class"):
        module.on_load_checkpoint(torch.load(last, weights_only=True))


def test_curriculum_follows_the_run(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config, *overlay("domino"))
    values = scalars(tmp_path / "runs/corrector_domino/v")
    for step, (whole, base, own) in enumerate(
        zip(values["train/loss"], values["train/base_loss"], values["train/corrector_loss"], strict=True)
    ):
        weight = 1 - step / 6
        assert whole == pytest.approx(weight * base + (1 - weight) * own, rel=1e-4)


def test_soft_labels_and_short_form(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli(
        *("fit", "--config", tiny_config, "--model.corrector=MarkovCorrector", "--model.corrector.rank=8"),
        "--model.objective.init_args.prediction=TotalVariation",
    )
    assert "val/corrector_loss" in scalars(tmp_path / "runs/tiny/v")


def test_confidences_are_learnt_calibrated_stored_and_cut(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tiny_config.read_text()
    tiny_config.write_text(text.replace("concurrency: 2}", "concurrency: 2, confidence_threshold: 0.3}"))
    rated = (*overlay("gated"), "--model.corrector.init_args.confidence=true")
    soft = "--model.objective.init_args.prediction=TotalVariation"
    run_cli("fit", "--config", tiny_config, *rated, soft)
    folder = tmp_path / "runs/corrector_gated"
    values = scalars(folder / "v")
    for tag in ("val/confidence_ece_before", "val/confidence_ece_after", "val/confidence_ece_after_at/3"):
        assert all(0 <= value <= 1 for value in values[tag])
    assert "train/confidence_loss" in values
    assert values["decode/lossless"] == [1.0, 1.0]
    assert values["decode/offered_drafts"][-1] < 2
    # saved at the end of the validation that was the best one, so that it holds that one's temperatures
    best, place = folder / "v/checkpoints/best.ckpt", values["decode/mat"].index(max(values["decode/mat"]))
    temperatures = torch.load(best, weights_only=True)["state_dict"]["corrector.confidence.temperatures"]
    assert not torch.equal(temperatures[:3], torch.ones(3))
    run_cli("test", "--config", tiny_config, *rated, soft, "--ckpt_path", best, "--trainer.logger.version=test")
    again = scalars(folder / "test")
    for tag in ("val/confidence_ece_before", "val/confidence_ece_after"):
        assert again[tag][-1] == pytest.approx(values[tag][place], rel=1e-4), tag
    capsys.readouterr()
    prompt = ("--prompt", "add one and four", "--max_new_tokens", 12, "--device", "cpu")
    run_cli("generate", "--checkpoint", best, *prompt, "--confidence_threshold", 0.3)
    assert "output equal to AR" in capsys.readouterr().out
    module = load_module(str(best), "cpu")
    assert module.corrector.confidence_head is not None
    torch.testing.assert_close(module.corrector.confidence_head.temperatures, temperatures)
    module.make_corrector, module.drafter = MarkovCorrector, None  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"corrector (kind|confidence)"):
        module.on_load_checkpoint(torch.load(best, weights_only=True))


def test_threshold_is_checked(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    text = tiny_config.read_text()
    tiny_config.write_text(text.replace("concurrency: 2}", "concurrency: 2, confidence_threshold: 1.5}"))
    with pytest.raises(ValueError, match=r"confidence_threshold must be in \[0, 1\], got 1.5"):
        run_cli("fit", "--config", tiny_config)
    tiny_config.write_text(text.replace("concurrency: 2}", "concurrency: 2, confidence_threshold: 0.5}"))
    with pytest.raises(ValueError, match="DCOCO gives no confidence"):
        run_cli("fit", "--config", tiny_config, *overlay("dcoco"))
    assert not list(tmp_path.glob("runs/**/*.ckpt"))  # before the first step


def test_losses_of_candidates_are_chosen_by_class(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config, *overlay("dcoco_margin"))
    values = scalars(tmp_path / "runs/corrector_dcoco_margin/v")
    assert values["train/corrector_loss"][-1] < values["train/corrector_loss"][0]
    assert values["decode/lossless"] == [1.0, 1.0]
    module = load_module(str(tmp_path / "runs/corrector_dcoco_margin/v/checkpoints/last.ckpt"), "cpu")
    assert isinstance(module.corrector, DCOCO)
    assert module.corrector.needs_target


def test_drafter_is_validated_without_its_corrector(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `make ablation-correctors` does: nothing to train, so the checkpoint is only measured, then compared."""
    run_cli("fit", "--config", tiny_config, *overlay("selector"), "--model.draft_vocab_size=24")
    start = tmp_path / "runs/corrector_selector/v/checkpoints/last.ckpt"
    frozen = ("--config", ABLATIONS / "frozen_drafter.yaml", "--model.init_from", start, "--model.draft_vocab_size=24")
    run_cli("validate", "--config", tiny_config, *overlay("none"), *frozen)
    run_cli("fit", "--config", tiny_config, *overlay("dcoco"), *frozen)
    values = {name: scalars(tmp_path / "runs" / f"corrector_{name}" / "v") for name in ("none", "selector", "dcoco")}
    base = values["selector"]["val/base_mat"][-1]
    assert values["none"]["val/mat"][-1] == pytest.approx(base)
    assert values["dcoco"]["val/base_mat"][-1] == pytest.approx(base)
    assert values["none"]["decode/corrector_parameters"][-1] == 0
    capsys.readouterr()
    run_cli("compare", "--runs", *(tmp_path / "runs" / f"corrector_{name}" for name in ("none", "dcoco")))
    printed = capsys.readouterr().out
    assert "ref is corrector_none/v; intervals: 95 %, bootstrap over 3 prompts" in printed
    assert "MAT - ref 95 %" in printed
    # a checkpoint brings everything: where it started from may be gone
    start.unlink()
    last = tmp_path / "runs/corrector_dcoco/v/checkpoints/last.ckpt"
    run_cli("validate", "--config", tiny_config, *overlay("dcoco"), "--ckpt_path", last, "--trainer.logger.version=w")
    again = scalars(tmp_path / "runs/corrector_dcoco/w")
    assert again["val/mat"][-1] == pytest.approx(values["dcoco"]["val/mat"][-1])


def test_checkpoint_for_other_slots_or_another_vocabulary(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    run_cli("fit", "--config", tiny_config, *overlay("dcoco"), "--model.draft_vocab_size=24")
    last = tmp_path / "runs/corrector_dcoco/v/checkpoints/last.ckpt"
    again = ("fit", "--config", tiny_config, *overlay("dcoco"), "--model.init_from", last)
    slots = "--model.drafter.init_args.sample_from_anchor=true"
    with pytest.raises(ValueError, match="draft_vocab_size 24, this run has 32"):
        run_cli(*again, "--model.draft_vocab_size=32", "--trainer.logger.init_args.version=a")
    with pytest.raises(ValueError, match="sample_from_anchor"):
        run_cli(*again, "--model.draft_vocab_size=24", slots, "--trainer.logger.init_args.version=b")


def test_too_many_candidates(run_cli: Run, tiny_config: Path) -> None:
    with pytest.raises(ValueError, match=r"candidates 65 must be in 2\.\.64"):
        run_cli("fit", "--config", tiny_config, "--model.corrector=DCOCO", "--model.corrector.candidates=65")
