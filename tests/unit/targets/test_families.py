from __future__ import annotations

import pytest
from transformers import AutoConfig, GraniteConfig, LlamaConfig, Qwen3Config, T5Config

from specdraft.taps import evenly_spaced_taps
from specdraft.targets.describe import describe
from specdraft.targets.families import logit_multiplier, logit_softcap, refuse_unfit


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("qwen3_next", "linear attention"),
        ("jamba", "Mamba layers"),
        ("mamba", "Mamba layers"),
        ("mamba2", "Mamba layers"),
        ("recurrent_gemma", "recurrent layers"),
        ("falcon_h1", "Mamba layers"),
        ("granitemoehybrid", "Mamba layers"),
        ("lfm2", "short convolutions"),
        ("rwkv", "recurrent layers"),
    ],
)
def test_targets_that_cannot_roll_back_are_refused_by_name(model_type, reason):
    with pytest.raises(ValueError, match=f"'some/target' \\({model_type}\\).*{reason}.*cannot roll back"):
        refuse_unfit(AutoConfig.for_model(model_type), "some/target")


def test_other_unfit_targets():
    with pytest.raises(ValueError, match="encoder-decoder"):
        refuse_unfit(T5Config(), "t5")
    with pytest.raises(ValueError, match="chunked"):
        refuse_unfit(AutoConfig.for_model("llama4_text"), "llama4")

    class Stateful:
        _is_stateful = True

    with pytest.raises(ValueError, match="cannot roll back"):
        refuse_unfit(LlamaConfig(), "new", Stateful)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    with pytest.raises(ValueError, match=r"rotary embedding \(dynamic\)"):
        refuse_unfit(LlamaConfig(rope_parameters=rope), "long")
    config = Qwen3Config(num_hidden_layers=2, layer_types=["full_attention", "linear_attention"])
    with pytest.raises(ValueError, match="linear_attention"):
        refuse_unfit(config, "hybrid")


def test_attention_models_are_accepted():
    for model_type in ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gemma3", "granite", "cohere2"):
        refuse_unfit(AutoConfig.for_model(model_type), model_type)


def test_scaling_of_logits():
    assert logit_multiplier(GraniteConfig(logits_scaling=8.0)) == 0.125
    assert logit_multiplier(AutoConfig.for_model("cohere", logit_scale=0.0625)) == 0.0625
    assert logit_multiplier(LlamaConfig()) == 1.0
    assert logit_softcap(LlamaConfig()) is None
    assert logit_softcap(AutoConfig.for_model("gemma2", final_logit_softcapping=30.0)) == 30.0


def test_description_is_plain_and_complete():
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=80,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    )
    spec = describe(config, "x", None, None, rows=100, vocab_size=97)
    assert (spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim) == (4, 2, 16)
    assert (spec.intermediate_size, spec.rms_norm_eps, spec.max_position_embeddings) == (80, 1e-5, 512)
    assert spec.rope_parameters == {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
    assert type(spec.rope_parameters) is dict
    assert spec.taps == (1, 2, 3, 4, 5)
    assert spec.mask_token_id == 96
    every = [describe(config, "x", taps, None, rows=100, vocab_size=97).taps for taps in ("all", 6, 7)]
    assert every == [tuple(range(spec.num_layers)), *(evenly_spaced_taps(spec.num_layers, n) for n in (6, 7))]
    gemma = describe(AutoConfig.for_model("gemma3_text"), "g", [3], None, rows=9, vocab_size=9)
    assert gemma.rope_parameters["rope_theta"] == 1_000_000


@pytest.mark.parametrize(
    ("taps", "message"),
    [
        ([-1], "tap -1"),
        ([1, 1], "named twice"),
        ([4], "tap 4 is out of range"),
        ([], "empty"),
        (0, "at least 1"),
        ("every", "use all"),
    ],
)
def test_bad_taps(taps, message):
    config = LlamaConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=4)
    with pytest.raises(ValueError, match=message):
        describe(config, "x", taps, None, rows=9, vocab_size=9)


def test_mask_token_outside_the_embedding():
    config = LlamaConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=4)
    for mask in (9, -1):
        with pytest.raises(ValueError, match=f"mask_token_id {mask}"):
            describe(config, "x", [0], mask, rows=9, vocab_size=9)
