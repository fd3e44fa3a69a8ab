"""Bad input ends with an error that names the value and the fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Run = Callable[..., None]


def expect(capsys: pytest.CaptureFixture[str], run_cli: Run, *words: object) -> str:
    """Run, and return what the user reads: the exception's text, or what the parser printed."""
    with pytest.raises((Exception, SystemExit)) as caught:
        run_cli(*words)
    return f"{caught.value}\n{capsys.readouterr().err}"


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ("--model.drafter=DFlsh", "DFlash"),
        ("--model.drafter.init_args.block_sise=4", "block_size"),
        ("--model.objective.init_args.weighting=ExponentialDecy", "ExponentialDecay"),
        ("--model.target.taps=[0,9]", "tap 9 is out of range"),
        ("--model.target.taps=[-1]", "tap -1 is out of range"),
        ("--model.target.taps=[1,1]", "tap 1 is named twice"),
        ("--model.target.mask_token_id=64", "mask_token_id 64 is no row of the embedding"),
        ("--model.drafter.init_args.block_size=1", "block_size 1"),
        ("--model.draft_vocab_size=1000", "draft_vocab_size 1000"),
        ("--model.init_from=nowhere.ckpt", "no checkpoint at nowhere.ckpt"),
        (
            "--model.objective.init_args.inclusion=MixedHorizon --model.objective.init_args.inclusion.horizons=[2,8]",
            "horizon 8 is larger than the drafter's block size 4",
        ),
        (
            "--model.objective.init_args.inclusion=MixedHorizon --model.objective.init_args.inclusion.horizons=[2,3]",
            "the largest horizon 3 is below the drafter's block size 4",
        ),
        (
            "--trainer.callbacks+=SpeculativeDecoding --trainer.callbacks.name=other --trainer.callbacks.block_size=8",
            "block_size 8 must be in 2..4",
        ),
        ("--trainer.callbacks+=lightning.pytorch.callbacks.EMAWeightAveraging", "use_buffers: false"),
    ],
)
def test_bad_options(
    run_cli: Run, tiny_config: Path, capsys: pytest.CaptureFixture[str], option: str, match: str
) -> None:
    assert match in expect(capsys, run_cli, "fit", "--config", tiny_config, *option.split())
    assert not list(tiny_config.parent.rglob("*.ckpt")), "trained before it was refused"


def test_checkpoint_of_another_shape_or_target(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli("fit", "--config", tiny_config)
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    again = ("fit", "--config", tiny_config, "--model.init_from", last)
    text = expect(capsys, run_cli, *again, "--trainer.logger.version=a", "--model.drafter.init_args.block_size=6")
    assert "block_size 4" in text
    assert "6" in text
    text = expect(capsys, run_cli, *again, "--trainer.logger.version=b", "--model.target.taps=[1,2]")
    assert "taps [0, 2]" in text
    assert "[1, 2]" in text
    from tests.conftest import save_tiny_target

    other = save_tiny_target(tmp_path / "other-target", seed=3)
    text = expect(capsys, run_cli, *again, "--trainer.logger.version=c", f"--model.target.path={other}")
    assert "target name" in text


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (['{"prompt": "add one", "response": "one"}', "{broken"], "bad.jsonl:2"),
        (['{"prompt": "add one"}'], "bad.jsonl:1"),
        (['{"prompt": "add one", "response": ""}'], "no row"),
    ],
)
def test_bad_data(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], match: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert match in expect(capsys, run_cli, "fit", "--config", tiny_config, f"--data.init_args.train={path}")


def test_prompt_longer_than_the_context(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli("fit", "--config", tiny_config)
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    text = expect(capsys, run_cli, "generate", "--checkpoint", last, "--prompt", "one " * 300)
    assert "256" in text


def test_non_finite_loss_stops_and_keeps_the_last_good_checkpoint(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = expect(
        capsys, run_cli, "fit", "--config", tiny_config, "--model.optimizer.init_args.lr=1e30", "--trainer.max_steps=50"
    )
    assert "not finite" in text
    state = torch.load(tmp_path / "runs/tiny/v/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.isfinite(value).all() for value in state.values())


def test_target_that_cannot_roll_back(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mamba"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}))
    text = expect(capsys, run_cli, "fit", "--config", tiny_config, f"--model.target.path={folder}")
    assert "mamba" in text
    assert "roll" in text


def test_generate_without_a_checkpoint(run_cli: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no checkpoint at" in expect(capsys, run_cli, "generate", "--checkpoint", "gone.ckpt", "--prompt", "hi")
