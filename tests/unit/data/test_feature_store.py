"""Shards: dealt, resumed, recognised when damaged, and read fast."""

import json
import os
import pickle
import random
from pathlib import Path
from time import perf_counter

import pytest
import torch
from data_fakes import FakeTarget, contents, rows

from specdraft.data import stored_features
from specdraft.data.feature_formats import FORMATS
from specdraft.data.feature_manifest import Manifest
from specdraft.data.feature_shards import plan_shards
from specdraft.data.feature_store import FeatureStore
from specdraft.data.features import CachedFeatures
from specdraft.scratch import scratch_of

TINY = 100 / 2**20  # shards of 100 bytes; a token of the fake target takes 32


class Dying(FakeTarget):
    """A target that dies after so many batches."""

    def __init__(self, batches, **options):
        super().__init__(**options)
        self.left = batches

    def features(self, *args, **options):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().features(*args, **options)


@pytest.mark.parametrize("shard_bytes", [1, 100, 1000, 10**9])
def test_every_row_lies_in_one_shard_of_bounded_size(shard_bytes):
    lengths = [random.Random(1).randrange(1, 40) for _ in range(50)]
    plans = plan_shards(lengths, 8, shard_bytes)
    assert sorted(row for plan in plans for row in plan.rows) == list(range(50))
    assert [plan.number for plan in plans] == list(range(len(plans)))
    for plan in plans:
        assert [b - a for a, b in zip(plan.starts, plan.starts[1:], strict=False)] == [
            lengths[row] for row in plan.rows
        ]
        assert plan.tokens * 8 <= shard_bytes or len(plan.rows) == 1
    longest_first = [lengths[row] for plan in plans for row in plan.rows]
    assert longest_first == sorted(lengths, reverse=True)


def test_an_interrupted_extraction_goes_on_and_ends_with_the_same_files(tmp_path):
    data = rows()
    CachedFeatures(str(tmp_path / "whole"), shard_mib=TINY).prepare(FakeTarget(), data, "train")
    source = CachedFeatures(str(tmp_path / "cut"), shard_mib=TINY)
    with pytest.raises(KeyboardInterrupt):
        source.prepare(Dying(5), data, "train")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cut").rglob("*.safetensors")}
    assert 2 < len(kept) < 12
    assert not list(tmp_path.glob("cut/**/manifest.json"))
    own = scratch_of(tmp_path / "cut/train/shard-000011.safetensors")
    left = own.with_name(own.name.replace(str(os.getpid()), str(2**22 + 1)))  # beyond the ids of processes
    scratch = own.with_name(own.name.replace(str(os.getpid()), str(os.getppid())))
    old, young = (own.with_name(f"shard-000011.safetensors.elsewhere.{i}.tmp") for i in (1, 2))
    for path in (scratch, left, old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    again = FakeTarget()
    other_shards = CachedFeatures(str(tmp_path / "cut"), shard_mib=9, batch_tokens=7)  # the earlier run has dealt
    reader = other_shards.prepare(again, data, "train")
    assert again.calls <= len(data) - len(kept) + 1  # and one to recognise the weights
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert [path.exists() for path in (left, old)] == [False, False]
    for path in (scratch, young):
        path.unlink()  # of a process that lives, or may live
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    expected = CachedFeatures(str(tmp_path / "whole")).prepare(FakeTarget(), data, "train")
    assert all(torch.equal(reader.read(i)[0], expected.read(i)[0]) for i in range(len(data)))


def test_an_unfinished_cache_of_other_weights_or_precision_is_not_continued(tmp_path):
    source, data = CachedFeatures(str(tmp_path), matmul_precision="highest", shard_mib=TINY), rows()
    with pytest.raises(KeyboardInterrupt):
        source.prepare(Dying(5), data, "train")
    with pytest.raises(ValueError, match="not those of the weights"):
        source.prepare(FakeTarget(seed=1), data, "train")
    with pytest.raises(ValueError, match=r"taps is \[1, 3\] in the cache and \[0, 2\] now"):
        source.prepare(FakeTarget(taps=(0, 2)), data, "train")
    with pytest.raises(ValueError, match="precision is 'highest' in the cache and 'medium' now"):
        CachedFeatures(str(tmp_path), matmul_precision="medium").prepare(FakeTarget(), data, "train")


def test_a_cache_with_hidden_states_serves_and_is_resumed_without(tmp_path):
    source, data = CachedFeatures(str(tmp_path), "float32", shard_mib=TINY), rows()
    with pytest.raises(KeyboardInterrupt):
        source.prepare(Dying(5), data, "train", last_hidden=True)
    features, hidden = source.prepare(FakeTarget(), data, "train").read(3)
    assert hidden is not None
    assert features.shape == (data.lengths[3], 16)
    assert json.loads((tmp_path / "train/manifest.json").read_text())["last_hidden"] is True


def test_missing_damaged_and_foreign_files(tmp_path):
    source, data = CachedFeatures(str(tmp_path), shard_mib=TINY), rows()
    source.prepare(FakeTarget(), data, "train")
    before = contents(tmp_path)
    files = sorted((tmp_path / "train").glob("*.safetensors"))
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-1])  # by its size
    again = FakeTarget()
    source.prepare(again, data, "train")
    assert again.calls == 3  # the two files, and the probe
    assert contents(tmp_path) == before
    store = source.store(FakeTarget(), data, "train", False)
    assert store.damaged() == []
    files[1].unlink()
    nearly = FakeTarget()
    nearly.table *= 1.01  # what is made again need not have the same bytes, on another machine
    source.prepare(nearly, data, "train")
    assert files[1].read_bytes() != before[f"train/{files[1].name}"]
    assert store.damaged() == []
    content = files[2].read_bytes()
    files[2].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # by its digest
    assert store.damaged() == [files[2].name]
    other = CachedFeatures(str(tmp_path / "other"), shard_mib=TINY)
    other.prepare(FakeTarget(name="other"), data, "train")
    reader = source.prepare(FakeTarget(), data, "train")
    files[3].write_bytes((tmp_path / "other/train" / files[3].name).read_bytes())
    row = store.plans[3].rows[0]
    with pytest.raises(OSError, match=f"{files[3].name} belongs to another feature cache"):
        reader.read(row)
    files[3].unlink()
    with pytest.raises(OSError, match=f"{files[3].name} is missing or damaged"):
        reader.read(row)


@pytest.mark.parametrize("named", [True, False])
def test_a_cache_of_the_old_layout_is_refused_or_made_anew(tmp_path, monkeypatch, named):
    monkeypatch.setenv("SPECDRAFT_CACHE", str(tmp_path))
    source, data = CachedFeatures(str(tmp_path) if named else None), rows()
    folder = source.store(FakeTarget(), data, "train", False).folder
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"target": "fake", "complete": true}')
    (folder / "features.bin").write_bytes(b"1")
    if named:
        with pytest.raises(ValueError, match=r"was made by another version of specdraft .*delete it"):
            source.prepare(FakeTarget(), data, "train")
    else:
        source.prepare(FakeTarget(), data, "train").read(0)
        assert not (folder / "features.bin").exists()


def test_readers_are_pickled_and_keep_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_features, "_MOST_OPEN", 3)
    data = rows()
    reader = CachedFeatures(str(tmp_path), shard_mib=TINY).prepare(FakeTarget(), data, "train")
    values = [reader.read(i)[0] for i in range(len(data))]
    assert len(reader._open) == 3
    copy = pickle.loads(pickle.dumps(reader))
    assert all(torch.equal(copy.read(i)[0], values[i]) for i in reversed(range(len(data))))
    values[0].zero_()  # a copy, not the file
    assert reader.read(0)[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_off_by_half_a_step_of_its_token_and_tap(dtype):
    features = torch.randn(40, 3 * 32, generator=torch.Generator().manual_seed(0))
    features[:, 32:64] *= torch.logspace(-6, 6, 40)[:, None]
    features[7] = 0.0
    features[0, 5] = 27776.0
    features = features.to(dtype)
    format = FORMATS["int8"]
    stored = format.encode(features, 3)
    assert {name: (value.dtype, value.shape[1]) for name, value in stored.items()} == format.columns(3, 32)
    found = format.decode(stored, torch.float32)
    values = features.float().unflatten(-1, (3, 32))
    largest = values.abs().amax(-1, keepdim=True)
    assert ((found.unflatten(-1, (3, 32)) - values).abs() <= largest / 254 * (1 + 1e-5)).all()
    assert torch.equal(found[7], torch.zeros(96))
    ordinary = torch.arange(40) > 7
    error = (found - features.float())[ordinary].unflatten(-1, (3, 32)).norm(dim=-1)
    assert (error / values[ordinary].norm(dim=-1)).max() < 0.012  # no worse than the rounding of three steps of bf16
    assert format.decode(stored, dtype).dtype == dtype


def test_int8_halves_the_size_and_keeps_hidden_states(tmp_path):
    data, target = rows(), FakeTarget(taps=(1, 5))  # tap 5 is scaled by 1e5
    sizes = {}
    for dtype in ("bfloat16", "int8"):
        source = CachedFeatures(str(tmp_path / dtype), dtype)
        reader = source.prepare(target, data, "train", last_hidden=True)
        sizes[dtype] = source.store(target, data, "train", True).token_bytes
        features, hidden = reader.read(4)
        with torch.no_grad():
            ids = data.tokens(4)[None]
            out = target.features(ids, torch.arange(ids.shape[1])[None], None, last_hidden=True)
        assert torch.equal(hidden, out.hidden[0].bfloat16().float())
        steps = out.features[0].unflatten(-1, (2, 8)).abs().amax(-1, keepdim=True) / (254 if dtype == "int8" else 200)
        assert ((features - out.features[0]).unflatten(-1, (2, 8)).abs() <= steps * 1.001).all()
    assert sizes == {"bfloat16": 2 * 16 + 2 * 8, "int8": 16 + 2 * 4 + 2 * 8}
    again = FakeTarget(taps=(1, 5))
    CachedFeatures(str(tmp_path / "int8"), "int8").prepare(again, data, "train", last_hidden=True)
    assert again.calls == 1
    with pytest.raises(ValueError, match="dtype is 'int8' in the cache and 'bfloat16' now"):
        CachedFeatures(str(tmp_path / "int8")).prepare(target, data, "train", last_hidden=True)


def test_reading_a_batch_costs_no_more_than_its_conversion(tmp_path):
    """16 rows of 123 tokens of five taps of 576, beside the same rows held in memory; timed in turn, best of many."""
    taps, hidden, length, count = 5, 576, 123, 48
    wanted = Manifest("t", list(range(taps)), hidden, "", "", count, count * length, "bfloat16", False)
    wanted.shard_bytes = 20 * length * taps * hidden * 2
    store = FeatureStore(Path(tmp_path), wanted, [length] * count)
    store.create()
    for plan in store.plans:
        store.write(plan, {"features": torch.randn(plan.tokens, taps * hidden).bfloat16()}, torch.float32)
    assert store.finish()
    assert len(store.plans) == 3
    reader = store.open()
    held = [reader.read(i)[0].bfloat16() for i in range(count)]
    draw = random.Random(0)
    times = {"read": [], "convert": []}
    for _ in range(30):
        batch = draw.sample(range(count), 16)
        start = perf_counter()
        for row in batch:
            reader.read(row)
        middle = perf_counter()
        for row in batch:
            held[row].to(torch.float32)
        times["read"].append(middle - start)
        times["convert"].append(perf_counter() - middle)
    read, convert = min(times["read"]), min(times["convert"])
    print(f"{1e3 * read:.2f} ms read, {1e3 * convert:.2f} ms converted")
    assert read < 2 * convert + 1e-3
