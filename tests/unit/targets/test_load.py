from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from specdraft.targets import load_target
from specdraft.targets import probe as probe_module
from specdraft.targets.probe import reference_of

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)


def save(folder, model_type="llama", **options):
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, **options})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.save_pretrained(folder)
    return str(folder)


def test_loads_a_folder(tmp_path):
    path = save(tmp_path / "tiny", eos_token_id=[7, 9])
    target = load_target(path, taps=2)
    reference = AutoModelForCausalLM.from_pretrained(path)
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        expected = reference(tokens).logits
    torch.testing.assert_close(
        target.head(target.features(tokens, last_hidden=True).hidden), expected, atol=1e-4, rtol=1e-5
    )
    assert target.spec.name == path
    assert target.spec.taps == (0, 2)
    assert target.spec.mask_token_id == 63
    assert target.stop_token_ids == (7, 9)
    assert target.context_length == 128
    assert (target.dtype, target.device.type) == (torch.float32, "cpu")
    assert not any(p.requires_grad for p in target.model.parameters())
    with pytest.raises(ValueError, match="no tokenizer"):
        _ = target.tokenizer


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("granite", {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.5}),
        ("cohere", {"logit_scale": 0.25}),
        ("gemma2", {"head_dim": 8, "final_logit_softcapping": 3.0}),
        ("gemma3_text", {"head_dim": 8}),
        ("mistral", {"sliding_window": 3}),
        ("phi3", {"pad_token_id": 0}),
        ("olmo2", {}),
        ("qwen2_moe", {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
        ("gpt2", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "num_key_value_heads": 4}),
    ],
)
def test_families_reproduce_their_logits(tmp_path, model_type, options):
    path = save(tmp_path / model_type, model_type, **options)
    target = load_target(path, taps=[1])  # the probe compares logits and embeddings
    reference = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    tokens = torch.randint(0, 64, (1, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out = reference(tokens, output_hidden_states=True)
    cache = target.new_cache(1, 16)
    target.forward(tokens[:, :6], cache)
    cache.advance(6)
    hidden = target.forward(tokens[:, 6:], cache).hidden
    torch.testing.assert_close(target.head(hidden), out.logits[:, 6:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(target.features(tokens).features, out.hidden_states[2], atol=1e-4, rtol=1e-4)
    if not target.adds_positions:
        torch.testing.assert_close(target.embed(tokens), out.hidden_states[0], atol=1e-5, rtol=1e-5)


def test_drafts_may_reach_behind_the_last_learned_position(tmp_path):
    options = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 16, "num_key_value_heads": 4}
    path = save(tmp_path / "gpt2", "gpt2", **{**options, "max_position_embeddings": 16})
    target = load_target(path, taps=[1])
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(path)(tokens[:, :16]).logits
    cache = target.new_cache(1, 24)
    target.forward(tokens[:, :14], cache)
    cache.advance(14)
    hidden = target.forward(tokens[:, 14:], cache).hidden  # four of six drafts lie behind the context's end
    torch.testing.assert_close(target.head(hidden[:, :2]), expected[:, 14:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["auto", "sdpa", "eager"])
def test_kernels_agree(tmp_path, attention):
    path = save(tmp_path / "tiny")
    tokens, documents = torch.arange(10)[None], torch.tensor([[0] * 4 + [1] * 6])
    expected = load_target(path).features(tokens, document_ids=documents).features
    got = load_target(path, attention=attention).features(tokens, document_ids=documents).features
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_bfloat16(tmp_path):
    target = load_target(save(tmp_path / "tiny"), dtype="bfloat16")
    assert target.features(torch.arange(5)[None]).features.dtype == torch.bfloat16
    assert target.new_cache(1, 4).keys[0].dtype == torch.bfloat16
    assert target.embed(torch.tensor([1])).dtype == torch.bfloat16


def test_a_target_that_is_not_reproduced_is_refused_with_both_numbers(tmp_path, monkeypatch):
    path = save(tmp_path / "tiny")
    monkeypatch.setattr("specdraft.targets.hf.logit_multiplier", lambda config: 3.0)
    with pytest.raises(ValueError, match=r"llama\) is not reproduced: logit -?\d+\.\d+ here, -?\d+\.\d+ in the model"):
        load_target(path)


def test_an_embedding_that_is_not_reproduced_is_refused(tmp_path, monkeypatch):
    path = save(tmp_path / "granite", "granite", embedding_multiplier=12.0)
    monkeypatch.setattr("specdraft.targets.hf.embedding_multiplier", lambda config: 1.0)
    with pytest.raises(ValueError, match="not reproduced: embedding"):
        load_target(path)


def test_a_cache_that_does_not_fit_the_family_is_refused(tmp_path):
    path = save(tmp_path / "odd", "gpt2", n_embd=32, n_layer=3, n_head=4)  # says 2 key/value heads, but writes 4
    with pytest.raises(ValueError, match="the cache holds 1 rows of 2 heads of width 8"):
        load_target(path)


def test_the_probe_reads_different_tokens():
    ids = probe_module.probe_ids(64, torch.device("cpu"))
    assert ids.unique().numel() == 4
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
    logits, embeds = reference_of(model)
    assert logits.shape == (1, 4, 64)
    assert torch.equal(embeds, model.get_input_embeddings()(ids))


def test_refused_before_weights_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "vocab_size": 64}))
    with pytest.raises(ValueError, match=r"\(mamba\).*cannot roll back"):
        load_target(str(tmp_path))


def test_missing_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder '.*nowhere'"):
        load_target(str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="no GGUF file"):
        load_target(str(tmp_path / "nowhere.gguf"))
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_target(str(tmp_path))
    (tmp_path / "weights.bin").write_text("x")
    with pytest.raises(ValueError, match=r"not a \.gguf"):
        load_target(str(tmp_path / "weights.bin"))


def test_unknown_name(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match=r"'nobody/no-such-model' is no folder here.*smollm2-135m-instruct"):
        load_target("nobody/no-such-model")


def test_bad_options(tmp_path):
    path = save(tmp_path / "tiny")
    for options, message in [
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"attention": "flash"}, "attention 'flash'"),
        ({"taps": [3]}, "tap 3 is out of range"),
        ({"taps": 4}, "4 distinct taps do not fit"),
        ({"mask_token_id": 64}, "mask_token_id 64"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_target(path, **options)
