"""The policy file: there and back, warnings and errors."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from specdraft.checkpoints import digest
from specdraft.decoding import MadeFor, PolicyFile, RunningSurvival, StaticTable, TunedTables, load_policy

HERE = MadeFor("runs/a.ckpt", "0123", "cpu AVX2, 1 threads", "float32 / float32")


def tables(temperature: float, block: int) -> TunedTables:
    return TunedTables(
        temperature,
        {"all": {2: [0.5], 4: [0.5, 0.25, 0.125]}},
        {2: {1: 0.01, 8: 0.02}, 4: {1: 0.011, 8: 0.03}},
        {"all": {1: block, 8: 2}},
        nested=False,
    )


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "deep" / "policy.yaml"
    PolicyFile("StaticTable", HERE, (tables(0.0, 4), tables(1.0, 2))).write(path)
    return path


def test_there_and_back(path):
    file = PolicyFile.read(path)
    assert file == PolicyFile("StaticTable", HERE, (tables(0.0, 4), tables(1.0, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = load_policy(path, HERE, 0.0, 4)
    assert isinstance(policy, StaticTable)
    assert policy.choose([""], 1) == 4
    assert load_policy(path, HERE, 1.0, 4).choose([""], 1) == 2


@pytest.mark.parametrize(
    ("here", "temperature", "match"),
    [
        (MadeFor("b.ckpt", "9999", HERE.device, HERE.dtype), 0, r"checkpoint runs/a.ckpt \(0123\), not b.ckpt \(9999"),
        (MadeFor("the weights", "", HERE.device, HERE.dtype), 0, r"checkpoint runs/a.ckpt \(0123\), not the weights"),
        (MadeFor("moved.ckpt", "0123", "cuda H200", HERE.dtype), 0, "device cpu AVX2, 1 threads, not cuda H200"),
        (MadeFor("moved.ckpt", "0123", HERE.device, "bfloat16 / float32"), 0, "dtype float32 / float32, not bfloat16"),
        (HERE, 0.7, "temperature 1, not 0.7"),
    ],
)
def test_warns_with_both_values(path, here, temperature, match):
    with pytest.warns(UserWarning, match=match) as caught:
        load_policy(path, here, temperature, 4)
    assert len(caught) == 1


def test_refuses(path, tmp_path):
    with pytest.raises(ValueError, match=r"up to 4, but the drafter of runs/a.ckpt was trained with 3"):
        load_policy(path, HERE, 0.0, 3)
    with pytest.raises(FileNotFoundError, match=r"no policy at .*gone.yaml"):
        PolicyFile.read(tmp_path / "gone.yaml")
    text = path.read_text()
    for broken, match in [
        ("- [", "is no policy of specdraft tune"),
        ("a: 1", "there is no 'tables'"),
        (text.replace("StaticTable", "StatikTable"), "'StatikTable' is unknown; use StaticTable, RunningSurvival"),
        (text.replace("StaticTable", "no.where.Table"), "cannot be imported"),
        (text.replace("StaticTable", "pathlib.Path"), "is unknown"),
        (text.replace("digest", "digits"), "digits"),
        (text.split("tables:")[0] + "tables: []", "holds no tables"),
    ]:
        path.write_text(broken)
        with pytest.raises(ValueError, match=match):
            PolicyFile.read(path)


def test_the_class_is_named(path):
    path.write_text(path.read_text().replace("StaticTable", "RunningSurvival"))
    assert isinstance(load_policy(path, HERE, 0.0, 4), RunningSurvival)
    path.write_text(path.read_text().replace("RunningSurvival", "specdraft.decoding.policy.StaticTable"))
    assert isinstance(load_policy(path, HERE, 0.0, 4), StaticTable)


def test_circumstances(tmp_path):
    types = (torch.bfloat16, torch.float32)
    folder = tmp_path / "exported"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    here = MadeFor.of(torch.device("cpu"), *types, str(folder), digest(folder))
    assert here.dtype == "bfloat16 / float32"
    assert here.device.startswith("cpu ")
    assert len(here.digest) == 16
    moved = folder.rename(tmp_path / "moved")
    assert here.differences(MadeFor.of(torch.device("cpu"), *types, str(moved), digest(moved))) == []
    unknown = MadeFor.of(torch.device("cpu"), *types, "the weights of this run")
    assert len(unknown.differences(unknown)) == 1  # weights that are nowhere cannot be told to be the same


def test_filters_count_where_tokens_are_drawn(path):
    narrow = replace(HERE, top_p=0.8, top_k=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_policy(path, narrow, 0.0, 4)
    with pytest.warns(UserWarning, match="top_p 1, top_k 0, not top_p 0.8, top_k 20"):
        load_policy(path, narrow, 1.0, 4)
