"""SIGKILL at random moments of an extraction: finished files stay, and the cache ends as an uninterrupted one."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

from specdraft.data.features import CachedFeatures
from specdraft.data.tokens import TokenisedRows
from specdraft.targets import load_target

pytestmark = pytest.mark.slow


def test_an_extraction_is_killed(kill_at_random, tiny_target):
    target = load_target(str(tiny_target), taps=[0, 2])
    data, draw = TokenisedRows(), random.Random(1)
    for i in range(800):
        tokens = [draw.randrange(30) for _ in range(draw.randrange(2, 60))]
        data.append(f"r{i}", "", tokens, [True] * len(tokens))
    seen = {}

    def work(folder):
        source = CachedFeatures(str(folder), matmul_precision="highest", batch_tokens=256, shard_mib=0.03)
        source.prepare(target, data, "train", last_hidden=True)

    def result(folder):
        files = sorted((folder / "train").glob("*.safetensors"))
        assert len(files) > 15
        rows = torch.cat([load_file(path)["rows"] for path in files]).tolist()
        assert sorted(rows) == list(range(len(data)))
        return {path.name: path.read_bytes() for path in [*files, folder / "train/manifest.json"]}

    def finished_files_stay(folder):
        for record in (folder / "train").glob("shard-*.json"):
            shard = folder / "train" / json.loads(record.read_text())["name"]
            stamp = shard.stat().st_mtime_ns
            assert seen.setdefault(shard, stamp) == stamp  # not made again

    assert kill_at_random(work, result, finished_files_stay)
    assert seen
