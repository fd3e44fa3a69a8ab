"""The recipes for large targets take real steps: their own precision, optimiser, clipping and parts, a tiny target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[2] / "experiments"
RECIPES = sorted(ROOT.glob("qwen3-*/*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_recipe_trains_and_decodes(
    run_cli: Callable[..., None], tiny_target: Path, chat_file: Path, tmp_path: Path, recipe: Path
) -> None:
    callbacks = yaml.safe_load((ROOT / "parts" / "callbacks_paper.yaml").read_text())
    decoding = callbacks[0]
    assert decoding["class_path"] == "SpeculativeDecoding"
    decoding["init_args"] = {"num_prompts": 2, "max_new_tokens": 20}  # the tiny context ends at 256
    (tmp_path / "callbacks.yaml").write_text(yaml.safe_dump(callbacks))
    run_cli(
        *("fit", "--config", recipe, "--trainer.callbacks", tmp_path / "callbacks.yaml"),
        *("--model.target.path", tiny_target, "--model.target.dtype=float32", "--model.target.mask_token_id=3"),
        *("--model.drafter.init_args.num_layers=1", "--data.init_args.train", chat_file),
        *("--data.init_args.val_fraction=0.25", "--data.init_args.max_length=64", "--data.init_args.num_workers=0"),
        *("--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.strategy=auto"),
        *("--trainer.max_steps=2", "--trainer.max_epochs=-1", "--trainer.val_check_interval=4"),
        *("--trainer.check_val_every_n_epoch=null", "--trainer.limit_val_batches=1"),
        *("--trainer.enable_progress_bar=false", f"--trainer.logger.init_args.save_dir={tmp_path}/runs"),
    )
    (best,) = tmp_path.glob("runs/*/version_0/checkpoints/best.ckpt")  # of the decoded MAT
    found = torch.load(best, weights_only=True)
    assert found["global_step"] == 2
    assert all(torch.isfinite(value).all() for value in found["state_dict"].values() if value.is_floating_point())
    assert (best.parents[1] / "decoded" / "val-2.csv").is_file()
