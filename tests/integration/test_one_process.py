"""One module through several runs of one process, as in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from specdraft.cli import configured

Run = Callable[..., None]


@pytest.mark.filterwarnings("ignore")
def test_predict_then_validate_then_fit(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    small = "--model.draft_vocab_size=24"
    run_cli("fit", "--config", tiny_config, small, "--trainer.max_steps=1", "--trainer.val_check_interval=1")
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    module, data, _ = configured(["--config", str(tiny_config), small, f"--model.init_from={last}"])
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=-1, max_steps=3, val_check_interval=2, num_sanity_val_steps=0, **options)  # type: ignore[arg-type]
    drafts = trainer.predict(module, data)
    assert drafts
    assert all(set(batch) >= {"predicted", "labels"} for batch in drafts)
    saved = torch.load(last, weights_only=True)["state_dict"]
    for key, value in module.state_dict().items():
        torch.testing.assert_close(value, saved[key], rtol=0, atol=0)
    # what follows meets heads and metrics that were made in inference mode
    first = trainer.validate(module, data, verbose=False)[0]["val/loss"]
    trainer.fit(module, data)
    assert trainer.global_step == 3
    assert trainer.validate(module, data, verbose=False)[0]["val/loss"] != first
    # a copy, as weight averaging makes one, shares the frozen target
    other = deepcopy(module)
    assert other._target is module._target
    assert other._draft_head is module._draft_head
    assert other.corrector._embed.__self__ is module.target  # type: ignore[union-attr]
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        assert one is not two
        assert one.equal(two)
