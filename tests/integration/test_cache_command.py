"""``specdraft cache``: what a run would extract, told first, made ahead of it, and verified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from specdraft import feature_cache
from specdraft.targets.hf import HFTarget

Run = Callable[..., None]
CACHED = ("--data.init_args.features=CachedFeatures", "--data.init_args.features.init_args.dir=features")
SMALL = ("--data.init_args.features.init_args.shard_mib=0.02",)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every batch that the target is run over."""
    calls: list[int] = []
    original = HFTarget.features

    def counting(target: HFTarget, input_ids: object, *args: object, **options: object) -> object:
        calls.append(len(input_ids))  # type: ignore[arg-type]
        return original(target, input_ids, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(HFTarget, "features", counting)
    return calls


def test_a_cache_made_ahead_serves_the_run(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], forwards: list[int]
) -> None:
    run_cli("cache", "--config", tiny_config, *CACHED, *SMALL)
    said = capsys.readouterr().out
    assert "(2 taps of 32 as bfloat16) = " in said
    assert said.index("rows, ") < said.index("complete")
    for split in ("train", "val"):
        manifest = json.loads((tmp_path / "features" / split / "manifest.json").read_text())
        assert manifest["complete"]
        assert f"{split}: {manifest['row_count']} rows, {manifest['token_count']:,} tokens x 128 bytes" in said
    assert len(list((tmp_path / "features" / "train").glob("*.safetensors"))) > 2
    assert not (tmp_path / "runs").exists()  # nothing was trained
    forwards.clear()
    run_cli("fit", "--config", tiny_config, *CACHED, "--trainer.callbacks=null")
    assert forwards == [1, 1]  # one row of each split, to recognise the weights


def test_damage_is_found_and_only_what_was_damaged_is_made_anew(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], forwards: list[int]
) -> None:
    words = ("cache", "--config", tiny_config, *CACHED, *SMALL)
    run_cli(*words)
    shard = sorted((tmp_path / "features/train").glob("*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(SystemExit, match=f"train: damaged in .*: {shard.name}; delete them and run again"):
        run_cli(*words, "--verify")
    shard.unlink()
    with pytest.raises(SystemExit, match=r"train: .*is not complete, 1 files are missing"):
        run_cli(*words, "--verify")
    forwards.clear()
    run_cli(*words)
    assert 0 < sum(forwards) - 2 < 10  # of 18 rows, besides a row of each split to recognise the weights
    assert shard.read_bytes() == whole
    capsys.readouterr()
    run_cli(*words, "--verify")
    assert capsys.readouterr().out.count("all as they were written") == 2


def test_ranks_need_not_know_of_each_other(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("cache", "--config", tiny_config, CACHED[0], *SMALL)
    run_cli(*words, "--data.init_args.features.init_args.dir=one")
    dealt = (*words, "--data.init_args.features.init_args.dir=two", "--world-size", 2)
    run_cli(*dealt, "--rank", 1)
    assert "are left to other ranks" in capsys.readouterr().out
    assert not (tmp_path / "two/train/manifest.json").exists()
    run_cli(*dealt, "--rank", 0)
    one, two = (
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*.*")}
        for name in ("one", "two")
    )
    assert one == two
    with pytest.raises(ValueError, match=r"rank 2 must be in 0\.\.1"):
        run_cli(*dealt, "--rank", 2)


def test_a_large_cache_is_asked_for(
    run_cli: Run, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cache, "UNASKED_BYTES", 1000)
    words = ("cache", "--config", tiny_config, *CACHED)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(SystemExit, match="no terminal to ask: add --yes"):
        run_cli(*words)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n" if "MiB" in question else 1 / 0)
    with pytest.raises(SystemExit, match="nothing was written"):
        run_cli(*words)
    assert not (tmp_path / "features").exists()
    run_cli(*words, "--yes")
    assert (tmp_path / "features/train/manifest.json").exists()


def test_features_of_other_weights_count_as_missing_and_stay_until_their_successors_are_agreed_to(
    run_cli: Run,
    tiny_config: Path,
    tiny_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPECDRAFT_CACHE", str(tmp_path / "cached"))
    target = tmp_path / "target"
    shutil.copytree(tiny_target, target)
    words = ("cache", "--config", tiny_config, CACHED[0], "--model.target.path", target, "--splits", "val")
    run_cli(*words)
    (shard,) = (tmp_path / "cached").rglob("*.safetensors")
    before = shard.read_bytes()
    weights = load_file(target / "model.safetensors")
    save_file({name: -value for name, value in weights.items()}, target / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(feature_cache, "UNASKED_BYTES", 1000)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    capsys.readouterr()
    with pytest.raises(SystemExit, match="would be written, more than"):
        run_cli(*words)
    assert "in place of features of other weights" in capsys.readouterr().out
    assert shard.read_bytes() == before
    run_cli(*words, "--yes")
    assert shard.read_bytes() != before


def test_a_run_that_stores_nothing_is_told_so(run_cli: Run, tiny_config: Path) -> None:
    with pytest.raises(ValueError, match=r"OnlineFeatures, which stores nothing; add --data\.init_args\.features="):
        run_cli("cache", "--config", tiny_config)
