"""Training on cached features is training on features extracted in every step, only faster."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from specdraft.cli import configured

ROOT = Path(__file__).parents[2]


class Watch(Callback):
    """Losses and seconds of the steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._ended = perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = perf_counter()
        self.losses.append(float(outputs["loss"]))
        self.seconds.append(now - self._ended)  # loading the batch included
        self._ended = now


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


@pytest.mark.slow
@pytest.mark.usefixtures("chosen")
def test_cached_steps_take_half_the_time_or_less(tmp_path: Path) -> None:
    """The quickstart's step; each way is measured twice, in turn, and its fastest steps count."""
    words = ["--config", str(ROOT / "experiments/quickstart.yaml"), "--data.init_args.max_rows=80"]
    seconds: dict[str, list[float]] = {"OnlineFeatures": [], "CachedFeatures": []}
    for _ in range(2):
        for name in seconds:
            watch = train([*words, *features(name, "bfloat16", tmp_path)], 4)
            seconds[name] += watch.seconds[1:]  # the first holds the set-up
    online, cached = (sorted(values)[1] for values in seconds.values())
    print(f"seconds per step: {online:.3f} online, {cached:.3f} cached, {online / cached:.1f}x")
    assert online >= 2 * cached
