"""Checkpoints that sharded weights are resumed from."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch

from specdraft.sharding import FullySharded


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Lightning's strategy reads the file itself, past the plugin that compares checksums."""
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": {"w": torch.zeros(4096)}}, path)
    content = bytearray(path.read_bytes())
    at = content.find(b"\0" * 1024) + 500
    content[at] ^= 1
    path.write_bytes(content)
    strategy = FullySharded()
    reads = mock.patch("lightning.pytorch.strategies.ModelParallelStrategy.load_checkpoint")
    with mock.patch.object(FullySharded, "_sharded", True), reads as read:
        with pytest.raises(ValueError, match=r"last\.ckpt is damaged or no checkpoint \(checksum of"):
            strategy.load_checkpoint(path)
        assert not read.called
