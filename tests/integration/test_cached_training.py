"""Training on cached features is training on features extracted in every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from specdraft.cli import configured


class Watch(Callback):
    """Losses of the steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(float(outputs["loss"]))


def train(words: list[str], steps: int) -> Watch:
    seed_everything(1)
    module, data, _ = configured(words)
    watch = Watch()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        callbacks=[watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=data)
    return watch


def features(name: str, dtype: str, folder: Path) -> list[str]:
    place = "--data.init_args.features"
    if name == "OnlineFeatures":
        return [f"{place}={name}"]
    return [f"{place}={name}", f"{place}.init_args.dtype={dtype}", f"{place}.init_args.dir={folder}"]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["specdraft"])


@pytest.mark.usefixtures("chosen")
def test_cached_and_online_losses_are_equal(tiny_config: Path, tmp_path: Path) -> None:
    words = ["--config", str(tiny_config)]
    online = train([*words, *features("OnlineFeatures", "", tmp_path)], 20).losses
    assert online[-1] < online[0]
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 1e-3)):
        cached = train([*words, *features("CachedFeatures", dtype, tmp_path / dtype)], 20).losses
        assert len(cached) == 20
        torch.testing.assert_close(torch.tensor(cached), torch.tensor(online), rtol=tolerance, atol=tolerance)
