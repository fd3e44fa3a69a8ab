"""Training on cached features is training on features extracted in every step."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.cached_features import train


def features(name: str, dtype: str, folder: Path) -> list[str]:
    place = "--data.init_args.features"
    if name == "OnlineFeatures":
        return [f"{place}={name}"]
    return [f"{place}={name}", f"{place}.init_args.dtype={dtype}", f"{place}.init_args.dir={folder}"]


def test_cached_and_online_losses_are_equal(tiny_config: Path, tmp_path: Path) -> None:
    # ten times this rate amplifies the rounding to bf16 to 0.2 % within 20 steps of the tiny run
    words = ["--config", str(tiny_config), "--model.optimizer.init_args.lr=0.001"]
    online = train([*words, *features("OnlineFeatures", "", tmp_path)], 20).losses
    assert online[-1] < online[0]
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 1e-3)):
        cached = train([*words, *features("CachedFeatures", dtype, tmp_path / dtype)], 20).losses
        assert len(cached) == 20
        torch.testing.assert_close(torch.tensor(cached), torch.tensor(online), rtol=tolerance, atol=tolerance)
