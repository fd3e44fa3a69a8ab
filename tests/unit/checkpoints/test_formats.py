"""What is written in a public format comes back bit for bit, with the fields that engines read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from drafter_files import SHIFTED, SPEC, exported, made, rows
from safetensors.torch import load_file, save_file

from specdraft.checkpoints import FORMATS, DraftCheckpoint, format_named, read_folder
from specdraft.checkpoints.folding import fold_layer_fusion

CASES = [
    ("zlab", "none", {}),
    ("zlab", "none", {**SHIFTED, "causal": True}),
    ("zlab", "none", {"causal": True, "sliding_window": 9}),
    ("zlab", "none", {"sliding_window": 9}),
    ("zlab", "domino", SHIFTED),
    ("zlab", "domino", {}),
    ("zlab", "selector", {}),
    ("zlab", "selector", {"conv_kernel_size": 2, "conv_group_size": 8}),
    ("zlab", "none", {**SHIFTED, "conv_kernel_size": 3}),
    ("speculators", "selector", {"conv_kernel_size": 2, "conv_group_size": 8}),
    ("dcoco", "dcoco", {"conv_kernel_size": 2}),
    ("deepspec", "none", SHIFTED),
    ("deepspec", "vanilla", SHIFTED),
    ("deepspec", "gated", SHIFTED),
    ("deepspec", "rnn", SHIFTED),
    ("speculators", "none", {}),
    ("speculators", "none", {**SHIFTED, "sliding_window": 9}),
    ("speculators", "none", {"causal": True, "sliding_window": 9}),
    ("speculators", "vanilla", {}),
    ("speculators", "rnn", SHIFTED),
    ("speculators", "selector", {}),
    ("dcoco", "dcoco", SHIFTED),
    ("dcoco", "dcoco", {}),
]


def assert_same(found: DraftCheckpoint, wanted: DraftCheckpoint) -> None:
    for mine, theirs in ((found.weights, wanted.weights), (found.corrector.weights, wanted.corrector.weights)):
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert mine[name].dtype == tensor.dtype
            assert torch.equal(mine[name], tensor), name
    assert found.drafter == wanted.drafter
    assert (found.target.name, found.target.taps) == (wanted.target.name, wanted.target.taps)
    assert found.target.mask_token_id == wanted.target.mask_token_id
    assert found.target.num_layers == wanted.target.num_layers
    assert found.corrector.init_args() == wanted.corrector.init_args()
    assert found.training == wanted.training


@pytest.mark.parametrize(("name", "corrector", "options"), CASES)
def test_round_trip_is_bit_exact(name: str, corrector: str, options: dict[str, bool], tmp_path: Path) -> None:
    before = made(corrector, **options)
    assert FORMATS[name].refusals(before) == []
    after = exported(before, name, tmp_path / "one")
    assert after.format == name or (name == "dcoco" and after.format == "dcoco")
    assert_same(after, before)
    again = exported(after, name, tmp_path / "two")
    assert_same(again, before)
    assert (tmp_path / "one/config.json").read_text() == (tmp_path / "two/config.json").read_text()


def test_formats_convert_into_each_other(tmp_path: Path) -> None:
    before = made("vanilla", **SHIFTED)
    there = exported(before, "speculators", tmp_path / "speculators")
    back = exported(there, "deepspec", tmp_path / "deepspec")
    assert_same(back, before)


def test_half_precision_is_kept(tmp_path: Path) -> None:
    before = made()
    for name in before.weights:
        before.weights[name] = before.weights[name].bfloat16()
    after = exported(before, "zlab", tmp_path / "out")
    assert_same(after, before)
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"


def test_draft_vocabulary_of_speculators(tmp_path: Path) -> None:
    ids = torch.tensor([0, 2, 3, 7, 11, 12, 30, 39])
    before = made("vanilla", ids)
    after = exported(before, "speculators", tmp_path / "out")
    assert after.draft_token_ids is not None
    assert torch.equal(after.draft_token_ids, ids)
    assert_same(after, before)
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(tensors["d2t"], ids - torch.arange(8))  # what is added to a row
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids)
    assert torch.equal(tensors["lm_head.weight"], rows().head[ids])
    for name in ("zlab", "deepspec"):
        assert any("draft_vocab_size" in reason for reason in FORMATS[name].refusals(before))


def test_fields_that_the_engines_check(tmp_path: Path) -> None:
    exported(made("domino", **SHIFTED), "zlab", tmp_path / "domino")
    config = json.loads((tmp_path / "domino/config.json").read_text())
    nested = config["dflash_config"]
    assert config["architectures"] == ["DFlashDraftModel"]
    assert (nested["target_layer_ids"], nested["mask_token_id"]) == ([1, 3], 39)
    assert (nested["projector_type"], nested["shift_label"], nested["pure_draft_prefix_len"]) == ("domino", True, 1)
    assert (nested["gru_hidden_dim"], nested["emb_dim"]) == (7, 6)
    assert "sample_from_anchor" not in nested  # shift_label says it
    assert (config["block_size"], nested["block_size"], config["num_target_layers"]) == (4, 4, 6)
    for name in ("hidden_size", "head_dim", "layer_types", "rope_theta", "rms_norm_eps", "vocab_size", "dtype"):
        assert config[name] is not None
    assert config["tie_word_embeddings"] is False
    exported(made("selector"), "zlab", tmp_path / "selector")
    config = json.loads((tmp_path / "selector/config.json").read_text())
    assert config["architectures"] == ["DFlash2DraftModel"]
    assert (config["dflash_config"]["selector_rank"], config["dflash_config"]["selector_top_k"]) == (6, 5)
    convolutions = (config["dflash_config"]["conv_kernel_size"], config["dflash_config"]["conv_group_size"])
    assert convolutions == (2, 16)  # loaders of DFlash 2 ask for them: identities
    exported(made(), "zlab", tmp_path / "plain")
    assert json.loads((tmp_path / "plain/config.json").read_text())["dflash_config"]["sample_from_anchor"] is False
    names = set(load_file(tmp_path / "plain/model.safetensors"))
    assert len(names) == 2 * 11 + 3
    assert {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.1.self_attn.q_norm.weight"} <= names


def test_fields_of_deepspec_and_speculators(tmp_path: Path) -> None:
    exported(made("gated", **SHIFTED), "deepspec", tmp_path / "deepspec")
    config = json.loads((tmp_path / "deepspec/config.json").read_text())
    assert config["architectures"] == ["Qwen3DSparkModel"]
    assert (config["target_layer_ids"], config["mask_token_id"], config["markov_rank"]) == ([1, 3], 39, 6)
    assert (config["markov_head_type"], config["enable_confidence_head"], config["num_anchors"]) == (
        "gated",
        False,
        512,
    )
    tensors = load_file(tmp_path / "deepspec/model.safetensors")
    assert torch.equal(tensors["embed_tokens.weight"], rows().embedding)
    assert {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight", "markov_head.gate_proj.bias"} <= set(
        tensors
    )
    exported(made("selector"), "speculators", tmp_path / "speculators")
    config = json.loads((tmp_path / "speculators/config.json").read_text())
    assert config["aux_hidden_state_layer_ids"] == [2, 4]  # HF indices
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    assert config["speculators_config"]["verifier"]["name_or_path"] == "some/target"
    assert config["transformer_layer_config"]["num_hidden_layers"] == 2
    tensors = load_file(tmp_path / "speculators/model.safetensors")
    base = tensors["layers.1.mlp_conv.base_kernel"]
    assert torch.equal(base, torch.stack([torch.ones(32), torch.zeros(32)]).expand(2, 2, 32))
    assert tensors["layers.0.attention_conv.kernel_projection.weight"].shape == (2 * 2 * 32 // 16, 32)
    assert not tensors["layers.0.attention_conv.kernel_projection.weight"].any()


def test_dcoco_holds_a_drafter_that_loads_alone(tmp_path: Path) -> None:
    before = made("dcoco", **SHIFTED)
    exported(before, "dcoco", tmp_path / "out")
    alone = FORMATS["zlab"].load(tmp_path / "out")
    assert alone.corrector.name == "NoCorrector"
    assert all(torch.equal(alone.weights[name], tensor) for name, tensor in before.weights.items())
    config = json.loads((tmp_path / "out/corrector/config.json").read_text())
    assert config == {
        "architectures": ["DCOCODraftModel"], "format_version": 2, "hidden_size": 32, "candidates": 5,
        "score_first": True, "rms_inputs": True, "width": 4, "pair_width": 6, "hidden": 9,
    }  # fmt: skip


def test_version_1_of_dcoco_had_inputs_as_they_come(tmp_path: Path) -> None:
    exported(made("dcoco", **SHIFTED), "dcoco", tmp_path / "out")
    path = tmp_path / "out/corrector/config.json"
    config = json.loads(path.read_text())
    del config["rms_inputs"]
    path.write_text(json.dumps(config | {"format_version": 1}))
    assert read_folder(tmp_path / "out").corrector.facts == {"score_first": True, "rms_inputs": False}
    path.write_text(json.dumps(config | {"format_version": 3}))
    with pytest.raises(ValueError, match="format_version is 3; specdraft reads 1 and 2"):
        read_folder(tmp_path / "out")


@pytest.mark.parametrize(("options", "drafts"), [({}, 3), (SHIFTED, 4)])
def test_every_slot_drafts_where_the_anchors_does(options: dict[str, bool], drafts: int, tmp_path: Path) -> None:
    exported(made("vanilla", **options), "speculators", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == drafts


def test_equal_mixtures_are_folded(tmp_path: Path) -> None:
    before = made(layer_fusion=True)
    before.weights["tap_mix"] = torch.tensor([[0.5, -1.0], [0.5, -1.0]])
    assert FORMATS["zlab"].refusals(before) == []
    after = exported(before, "zlab", tmp_path / "out")
    assert not after.drafter.layer_fusion
    taps = torch.randn(5, 2 * SPEC.hidden_size, dtype=torch.float64)
    share = before.weights["tap_mix"][0].double().softmax(-1)
    mixed = share[0] * taps[:, :32] + share[1] * taps[:, 32:]
    wanted = mixed @ before.weights["fc.weight"].double().T
    torch.testing.assert_close(taps @ after.weights["fc.weight"].double().T, wanted, rtol=1e-5, atol=1e-5)
    assert fold_layer_fusion(made()).weights.keys() == made().weights.keys()


def test_an_export_overwrites_nothing(tmp_path: Path) -> None:
    exported(made(), "zlab", tmp_path / "out")
    with pytest.raises(FileExistsError, match="choose another --out"):
        format_named("zlab").save(made(), tmp_path / "out")
    with pytest.raises(ValueError, match="choose one of dcoco, deepspec, speculators, zlab"):
        format_named("gguf")


def test_confidence_heads_are_left_out_with_a_note(tmp_path: Path) -> None:
    exported(made("vanilla", **SHIFTED), "deepspec", tmp_path / "out")
    path = tmp_path / "out/model.safetensors"
    save_file({**load_file(path), "confidence_head.proj.weight": torch.zeros(1, 38)}, path)
    found = read_folder(tmp_path / "out")
    assert "confidence head" in found.notes[0]
    assert_same(found, made("vanilla", **SHIFTED))


def test_confidence_head_of_a_run_is_left_out_with_a_note(tmp_path: Path) -> None:
    checkpoint = made("rated", **SHIFTED)
    assert "confidence head" in checkpoint.notes[0]
    assert set(checkpoint.corrector.weights) == {"predecessor.weight", "output.weight"}
    assert_same(exported(checkpoint, "deepspec", tmp_path / "out"), checkpoint)


def test_scales_of_the_target(tmp_path: Path) -> None:
    before = made()
    before.target.scales.update(embedding=5.5, softcap=30.0)
    assert "target scaling" in FORMATS["speculators"].refusals(before)[0]
    after = exported(before, "zlab", tmp_path / "out")
    assert after.target.scales == {"embedding": 5.5, "multiplier": 1.0, "softcap": 30.0}


def test_cautions_name_the_engines_that_differ() -> None:
    zlab = FORMATS["zlab"]
    assert zlab.cautions(made()) == []
    assert zlab.cautions(made(causal=True, sliding_window=9)) == []
    assert "SGLang runs sliding layers causally" in zlab.cautions(made(sliding_window=9))[0]
    assert "SGLang does not read sample_from_anchor" in zlab.cautions(made(**SHIFTED))[0]
    assert zlab.cautions(made("domino", **SHIFTED)) == ["vLLM has no Domino; SGLang does"]
    speculators = FORMATS["speculators"]
    assert "--format zlab" in speculators.cautions(made("selector"))[0]
    assert "sample_from_anchor: true of a DFlash drafter" in speculators.cautions(made(**SHIFTED))[0]
    assert speculators.cautions(made()) == speculators.cautions(made("vanilla", **SHIFTED)) == []
    assert "vanilla Markov head only" in speculators.cautions(made("gated", **SHIFTED))[0]
    deepspec = FORMATS["deepspec"]
    assert "SGLang refuses it" in deepspec.cautions(made(**SHIFTED))[0]
    assert deepspec.cautions(made("gated", **SHIFTED)) == []
    scaled = made()
    scaled.target.scales.update(embedding=5.5)
    assert "unscaled embeddings" in zlab.cautions(scaled)[0]
    assert "served without it" in FORMATS["dcoco"].cautions(made("dcoco"))[-1]
