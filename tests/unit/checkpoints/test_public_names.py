"""Tensor names, shapes and fields of the public formats, written out: a round trip would not notice a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drafter_files import SHIFTED, exported, made
from safetensors.torch import load_file

HIDDEN, VOCAB, RANK = 32, 40, 6
LAYER = {
    "input_layernorm.weight": (32,),
    "mlp.down_proj.weight": (32, 48),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "post_attention_layernorm.weight": (32,),
    "self_attn.k_norm.weight": (8,),
    "self_attn.k_proj.weight": (16, 32),
    "self_attn.o_proj.weight": (32, 32),
    "self_attn.q_norm.weight": (8,),
    "self_attn.q_proj.weight": (32, 32),
    "self_attn.v_proj.weight": (16, 32),
}
DFLASH = {"fc.weight": (32, 64), "hidden_norm.weight": (32,), "norm.weight": (32,)}
DFLASH |= {f"layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()}
ROWS = {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
MARKOV = {"markov_head.markov_w1.weight": (VOCAB, RANK), "markov_head.markov_w2.weight": (VOCAB, RANK)}
GATE = {"markov_head.gate_proj.weight": (RANK, HIDDEN + RANK), "markov_head.gate_proj.bias": (RANK,)}
JOINT = {
    "markov_head.joint_proj.weight": (3 * RANK, 2 * RANK + HIDDEN),
    "markov_head.joint_proj.bias": (3 * RANK,),
}
DOMINO = {
    "prefix_gru.weight_ih_l0": (3 * 7, HIDDEN),
    "prefix_gru.weight_hh_l0": (3 * 7, 7),
    "embed_proj.0.weight": (RANK, HIDDEN + 7),
    "embed_proj.2.weight": (VOCAB, RANK),
}
SELECTOR = {
    "candidate_selector.hidden_projection.weight": (RANK, HIDDEN),
    "candidate_selector.predecessor_codebook": (VOCAB, RANK),
    "candidate_selector.successor_codebook": (VOCAB, RANK),
}
CONVOLUTIONS = {
    f"layers.{i}.{part}_conv.{name}": shape
    for i in range(2)
    for part in ("attention", "mlp")
    for name, shape in (("base_kernel", (2, 2, HIDDEN)), ("kernel_projection.weight", (2 * 2 * HIDDEN // 16, HIDDEN)))
}
FILES = {
    ("zlab", "none"): {},
    ("zlab", "domino"): DOMINO,
    ("zlab", "selector"): SELECTOR | CONVOLUTIONS,
    ("deepspec", "none"): ROWS,
    ("deepspec", "vanilla"): ROWS | MARKOV,
    ("deepspec", "gated"): ROWS | MARKOV | GATE,
    ("deepspec", "rnn"): ROWS | MARKOV | JOINT,
    ("speculators", "none"): {},
    ("speculators", "vanilla"): MARKOV,
    ("speculators", "gated"): MARKOV | GATE,
    ("speculators", "rnn"): MARKOV | JOINT,
    ("speculators", "selector"): SELECTOR | CONVOLUTIONS,
}


@pytest.mark.parametrize(("name", "corrector"), FILES)
def test_tensors(name: str, corrector: str, tmp_path: Path) -> None:
    exported(made(corrector, **SHIFTED), name, tmp_path / "out")
    found = {key: tuple(tensor.shape) for key, tensor in load_file(tmp_path / "out/model.safetensors").items()}
    assert found == DFLASH | FILES[name, corrector]


def test_tensors_of_convolutions(tmp_path: Path) -> None:
    exported(made("selector", conv_kernel_size=2, **SHIFTED), "zlab", tmp_path / "out")
    found = {key: tuple(tensor.shape) for key, tensor in load_file(tmp_path / "out/model.safetensors").items()}
    assert found == DFLASH | SELECTOR | CONVOLUTIONS


QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 40,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "dtype": "float32",
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "max_window_layers": 2,
}
FULL = {"layer_types": ["full_attention"] * 2, "sliding_window": None, "use_sliding_window": False}
SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9, "use_sliding_window": True}
ZLAB = QWEN3 | {"block_size": 4, "num_target_layers": 6, "architectures": ["DFlashDraftModel"]}
NESTED = {"mask_token_id": 39, "target_layer_ids": [1, 3], "block_size": 4, "num_target_layers": 6}
SWA = {"use_swa": True, "swa_window_size": 9}
GRU = {"projector_type": "domino", "shift_label": True, "pure_draft_prefix_len": 1, "gru_hidden_dim": 7, "emb_dim": 6}


@pytest.mark.parametrize(
    ("corrector", "options", "fields", "nested"),
    [
        ("none", {}, ZLAB | FULL | {"is_causal": False}, {"causal": False, "sample_from_anchor": False}),
        (
            "none",
            {"causal": True, "sliding_window": 9},
            ZLAB | SLIDING | {"is_causal": True},
            {"causal": True, "sample_from_anchor": False, **SWA},
        ),
        (
            "none",
            {**SHIFTED, "sliding_window": 9},
            ZLAB | SLIDING | {"is_causal": False},
            {"causal": False, "sample_from_anchor": True, **SWA},
        ),
        ("domino", SHIFTED, ZLAB | FULL | {"is_causal": False}, {"causal": False, **GRU}),
        (
            "selector",
            {},
            ZLAB | FULL | {"is_causal": False, "architectures": ["DFlash2DraftModel"]},
            {
                **{"causal": False, "sample_from_anchor": False, "selector_rank": 6, "selector_top_k": 5},
                **{"conv_kernel_size": 2, "conv_group_size": 16},
            },
        ),
        (
            "selector",
            {"conv_kernel_size": 2},
            ZLAB | FULL | {"architectures": ["DFlash2DraftModel"]},
            {
                **{"causal": False, "sample_from_anchor": False, "selector_rank": 6, "selector_top_k": 5},
                **{"conv_kernel_size": 2, "conv_group_size": 16},
            },
        ),
    ],
)
def test_fields_of_zlab(
    corrector: str, options: dict[str, Any], fields: dict[str, Any], nested: dict[str, Any], tmp_path: Path
) -> None:
    exported(made(corrector, **options), "zlab", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config.pop("dflash_config") == NESTED | nested
    assert {name: config.get(name, "missing") for name in fields} == fields
    assert config["max_position_embeddings"] >= 4


def test_fields_of_deepspec(tmp_path: Path) -> None:
    exported(made("gated", **SHIFTED), "deepspec", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    fields = (
        QWEN3
        | FULL
        | {
            "architectures": ["Qwen3DSparkModel"],
            "block_size": 4,
            "mask_token_id": 39,
            "target_layer_ids": [1, 3],
            "num_anchors": 512,
            "num_target_layers": 6,
            "markov_rank": 6,
            "markov_head_type": "gated",
            "enable_confidence_head": False,
            "confidence_head_with_markov": False,
        }
    )
    assert {name: config.get(name, "missing") for name in fields} == fields


@pytest.mark.parametrize(
    ("corrector", "kind", "more"),
    [
        ("none", "dflash", {}),
        ("vanilla", "dspark", {"markov_rank": 6, "markov_head_type": "vanilla", "enable_confidence_head": False}),
        (
            "selector",
            "dflash2",
            {"selector_rank": 6, "selector_top_k": 5, "conv_kernel_size": 2, "conv_group_size": 16},
        ),
    ],
)
def test_fields_of_speculators(corrector: str, kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    exported(made(corrector, sliding_window=9), "speculators", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    layers = config["transformer_layer_config"]
    wanted = QWEN3 | SLIDING
    assert {name: layers.get(name, "missing") for name in wanted} == wanted
    fields = {
        "speculators_model_type": kind,
        "speculators_version": "0.5.0",
        "aux_hidden_state_layer_ids": [2, 4],
        "block_size": 4,
        "mask_token_id": 39,
        "max_anchors": 512,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        "draft_vocab_size": 40,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        **more,
    }
    assert {name: config.get(name, "missing") for name in fields} == fields
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    assert config["speculators_config"] == {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [proposal],
        "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
    }


@pytest.mark.parametrize(("options", "non_causal"), [({}, True), ({"causal": True, "sliding_window": 9}, False)])
def test_full_layers_are_not_announced_as_causal(options: dict[str, Any], non_causal: bool, tmp_path: Path) -> None:
    """vLLM takes the field for every layer, and false as causal."""
    exported(made(**options), "speculators", tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["sliding_window_non_causal"] is non_causal
