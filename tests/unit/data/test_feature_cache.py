import json
from threading import Barrier, Thread

import pytest
import torch
from data_fakes import CHATML_SYSTEM, FakeTarget, contents, rows, tokenizer
from safetensors.torch import load_file

from specdraft.data.features import CachedFeatures, OnlineFeatures
from specdraft.scratch import scratch_of
from specdraft.types import TargetOutput


def online(target, tokens, last_hidden=False):
    positions = torch.arange(len(tokens))[None]
    with torch.no_grad():
        out = target.features(tokens[None], positions, torch.zeros_like(positions), last_hidden=last_hidden)
    return out.features[0], out.hidden[0] if last_hidden else None


@pytest.mark.parametrize("batch_tokens", [1, 20, 4096])
def test_fp32_cache_equals_online_features(tmp_path, batch_tokens):
    target, data = FakeTarget(), rows(7)
    reader = CachedFeatures(str(tmp_path), "float32", batch_tokens=batch_tokens).prepare(
        target, data, "train", last_hidden=True
    )
    for i in range(len(data)):
        features, hidden = reader.read(i)
        expected = online(target, data.tokens(i), last_hidden=True)
        assert torch.equal(features, expected[0])
        assert torch.equal(hidden, expected[1])


def test_bf16_cache_is_rounded_and_not_clipped(tmp_path):
    target, data = FakeTarget(taps=(1, 5)), rows(7)  # tap 5 is scaled by 1e5, beyond fp16
    reader = CachedFeatures(str(tmp_path)).prepare(target, data, "train")
    features, hidden = reader.read(3)
    expected = online(target, data.tokens(3))[0]
    assert features.dtype == torch.float32
    assert hidden is None
    assert expected.abs().max() > 65504
    assert torch.equal(features, expected.bfloat16().float())
    (shard,) = (tmp_path / "train").glob("*.safetensors")
    values = load_file(shard)
    assert values["features"].dtype == torch.bfloat16
    assert values["features"].shape == (sum(data.lengths), 2 * 8)


def test_a_complete_cache_is_reused_and_an_incomplete_one_is_not(tmp_path):
    source, data = CachedFeatures(str(tmp_path)), rows(7)
    source.prepare(FakeTarget(), data, "train")
    again = FakeTarget()
    source.prepare(again, data, "train")
    assert again.calls == 1  # the probe alone
    (tmp_path / "train" / "manifest.json").unlink()
    source.prepare(again, data, "train")
    assert again.calls > 1
    assert json.loads((tmp_path / "train" / "manifest.json").read_text())["complete"] is True


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda: FakeTarget(name="other"), "target is 'fake' in the cache and 'other' now"),
        (lambda: FakeTarget(taps=(0, 2)), r"taps is \[1, 3\] in the cache and \[0, 2\] now"),
        (lambda: FakeTarget(tokenizer(CHATML_SYSTEM)), r"tokenizer is '\w{16}' in the cache and '\w{16}' now"),
        (lambda: FakeTarget(seed=1), "not those of the weights of 'fake' loaded now"),
    ],
)
def test_a_cache_of_another_target_is_refused(tmp_path, target, message):
    source = CachedFeatures(str(tmp_path))
    source.prepare(FakeTarget(), rows(7), "train")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=message):
        source.prepare(target(), rows(7), "train")
    assert contents(tmp_path) == before


class TrainedAbove(FakeTarget):
    """The fake target with other layers above its last tap."""

    def features(self, *args, **options):
        out = super().features(*args, **options)
        return out if out.hidden is None else TargetOutput(-out.hidden, out.features)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_layers_above_the_last_tap_count_where_hidden_states_are_stored(tmp_path, dtype):
    source = CachedFeatures(str(tmp_path / "with"), dtype)
    source.prepare(FakeTarget(), rows(7), "train", last_hidden=True)
    source.prepare(FakeTarget(), rows(7), "train", last_hidden=True)
    with pytest.raises(ValueError, match="not those of the weights"):
        source.prepare(TrainedAbove(), rows(7), "train", last_hidden=True)
    without = CachedFeatures(str(tmp_path / "without"), dtype)
    without.prepare(FakeTarget(), rows(7), "train")
    without.prepare(TrainedAbove(), rows(7), "train")  # nothing stored depends on them


def test_a_large_first_token_does_not_hide_other_weights(tmp_path):
    def target(seed):
        out = FakeTarget(seed=seed)
        data = rows(7).tokens(0)
        out.table[data[0]] = 1e6  # as real targets do to the first token of a text
        out.features = lambda ids, positions, documents, last_hidden: TargetOutput(None, out.table[ids].repeat(1, 1, 2))
        return out

    source = CachedFeatures(str(tmp_path))
    source.prepare(target(0), rows(7), "train")
    source.prepare(target(0), rows(7), "train")
    with pytest.raises(ValueError, match="not those of the weights"):
        source.prepare(target(1), rows(7), "train")


def test_other_rows_types_and_missing_hidden_states_are_refused(tmp_path):
    CachedFeatures(str(tmp_path)).prepare(FakeTarget(), rows(7), "train")
    with pytest.raises(ValueError, match="row_count is 7 in the cache and 6 now"):
        CachedFeatures(str(tmp_path)).prepare(FakeTarget(), rows(6), "train")
    with pytest.raises(ValueError, match="dtype is 'bfloat16' in the cache and 'float32' now"):
        CachedFeatures(str(tmp_path), "float32").prepare(FakeTarget(), rows(7), "train")
    with pytest.raises(ValueError, match="last_hidden is False in the cache and True now"):
        CachedFeatures(str(tmp_path)).prepare(FakeTarget(), rows(7), "train", last_hidden=True)


def test_the_default_folder_is_chosen_by_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDRAFT_CACHE", str(tmp_path))
    source = CachedFeatures()
    for target in (FakeTarget(), FakeTarget(taps=(0, 2)), FakeTarget()):
        source.prepare(target, rows(7), "train")
    folders = list((tmp_path / "specdraft" / "features").iterdir())
    assert len(folders) == 2
    changed = FakeTarget(seed=1)  # other weights under the same name: made anew
    features, _ = source.prepare(changed, rows(7), "train").read(0)
    assert torch.equal(features, online(changed, rows(7).tokens(0))[0].bfloat16().float())


def test_a_full_disk_is_told_with_the_needed_size(tmp_path, monkeypatch):
    usage = __import__("shutil").disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=100))
    size = sum(rows(7).lengths) * 2 * 8 * 2
    with pytest.raises(OSError, match=f"features need {size:,} bytes .* 100 are free"):
        CachedFeatures(str(tmp_path)).prepare(FakeTarget(), rows(7), "train")
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.skipif(not __import__("os").path.exists("/dev/full"), reason="needs /dev/full")
def test_a_disk_that_fills_up_leaves_no_manifest(tmp_path, monkeypatch):
    from specdraft.data.feature_store import FeatureStore

    def create(store):
        store.folder.mkdir(parents=True)
        scratch_of(store.folder / "shard-000000.safetensors").symlink_to("/dev/full")

    monkeypatch.setattr(FeatureStore, "create", create)
    with pytest.raises(OSError, match=r"features need .* ran full while writing"):
        CachedFeatures(str(tmp_path)).prepare(FakeTarget(), rows(7), "train")
    assert not list(tmp_path.rglob("manifest.json"))


def test_values_that_are_not_finite_name_their_row(tmp_path):
    target, data = FakeTarget(), rows(7)
    target.table[3] = float("nan")
    with pytest.raises(ValueError, match="features that are not finite for row 'r"):
        CachedFeatures(str(tmp_path)).prepare(target, data, "train")
    assert not list(tmp_path.rglob("manifest.json"))


def in_two_threads(run):
    """Call ``run(rank, agree)`` as two ranks that wait for each other; their errors."""
    barrier, said, errors = Barrier(2, timeout=20), [True, True], [None, None]

    def rank(mine):
        def agree(done):
            said[mine] = done
            barrier.wait()
            both = all(said)
            barrier.wait()  # before either says something else
            return both

        try:
            run(mine, agree)
        except Exception as error:
            errors[mine] = error

    threads = [Thread(target=rank, args=(mine,)) for mine in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return errors


@pytest.mark.parametrize("breaks", ["create", "finish", "weights", "fill"])
def test_an_error_of_one_rank_ends_all(tmp_path, monkeypatch, breaks):
    """Nobody is left waiting, and the rank that failed says why."""
    data = rows(7)

    def fails(*_, **__):
        raise OSError("disk full")

    if breaks == "weights":
        CachedFeatures(str(tmp_path), "float32").prepare(FakeTarget(), data, "train")
        monkeypatch.setattr("specdraft.data.features.matches", lambda *_: False)
    elif breaks == "fill":
        fill = CachedFeatures.fill
        monkeypatch.setattr(CachedFeatures, "fill", lambda self, *given: fails() if given[3] else fill(self, *given))
    else:
        monkeypatch.setattr(f"specdraft.data.features.FeatureStore.{breaks}", fails)

    def run(rank, agree):
        CachedFeatures(str(tmp_path), "float32").prepare(
            FakeTarget(), data, "train", rank=rank, world_size=2, agree=agree
        )

    errors = in_two_threads(run)
    mine = 1 if breaks == "fill" else 0
    assert ("not those of the weights" if breaks == "weights" else "disk full") in str(errors[mine])
    assert "another rank could not prepare the features" in str(errors[1 - mine])


def test_ranks_extract_their_share(tmp_path):
    data, readers = rows(7), [None, None]

    def run(rank, agree):
        readers[rank] = CachedFeatures(str(tmp_path), "float32").prepare(
            FakeTarget(), data, "train", rank=rank, world_size=2, agree=agree
        )

    in_two_threads(run)
    for i in range(len(data)):
        expected = online(FakeTarget(), data.tokens(i))[0]
        assert all(torch.equal(reader.read(i)[0], expected) for reader in readers)


def test_matmul_precision_is_restored(tmp_path, monkeypatch):
    seen = []

    class Watching(FakeTarget):
        def features(self, *args, **options):
            seen.append(torch.get_float32_matmul_precision())
            return super().features(*args, **options)

    monkeypatch.setattr("specdraft.data.features.has_fast_bf16", lambda: True)
    CachedFeatures(str(tmp_path / "a")).prepare(Watching(), rows(7), "train")
    CachedFeatures(str(tmp_path / "b"), "float32").prepare(Watching(), rows(7), "train")
    assert set(seen[:1]) == {"medium"}
    assert seen[-1] == "highest"
    assert torch.get_float32_matmul_precision() == "highest"


def test_online_features_store_nothing():
    assert OnlineFeatures().prepare(FakeTarget(), rows(7), "train") is None


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match="dtype 'float16' is unknown"):
        CachedFeatures(dtype="float16")
