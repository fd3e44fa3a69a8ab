"""What is written in a public format comes back bit for bit, and what a format lacks is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drafter_files import SPEC, exported, made, rows
from safetensors.torch import load_file, save_file

from specdraft.checkpoints import FORMATS, DraftCheckpoint, format_named, read_folder
from specdraft.checkpoints.folding import fold_layer_fusion

SHIFTED = {"sample_from_anchor": True}
CASES = [
    ("zlab", "none", {}),
    ("zlab", "none", {**SHIFTED, "causal": True}),
    ("zlab", "none", {"causal": True, "sliding_window": 9}),
    ("zlab", "none", {"sliding_window": 9}),
    ("zlab", "domino", SHIFTED),
    ("zlab", "domino", {}),
    ("zlab", "selector", {}),
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
    assert "sample_from_anchor" not in nested  # SGLang refuses it as true; shift_label says it
    assert (config["block_size"], nested["block_size"], config["num_target_layers"]) == (4, 4, 6)
    for name in ("hidden_size", "head_dim", "layer_types", "rope_theta", "rms_norm_eps", "vocab_size", "dtype"):
        assert config[name] is not None
    assert config["tie_word_embeddings"] is False
    exported(made("selector"), "zlab", tmp_path / "selector")
    config = json.loads((tmp_path / "selector/config.json").read_text())
    assert config["architectures"] == ["DFlash2DraftModel"]
    assert (config["dflash_config"]["selector_rank"], config["dflash_config"]["selector_top_k"]) == (6, 5)
    assert not any(name.startswith("conv_") for name in config["dflash_config"])  # both or neither
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
        "architectures": ["DCOCODraftModel"], "format_version": 1, "hidden_size": 32, "candidates": 5,
        "score_first": True, "width": 4, "pair_width": 6, "hidden": 9,
    }  # fmt: skip


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
REFUSED = [
    ("zlab", "none", {"tap_norm": True}, "tap_norm"),
    ("zlab", "none", {"layer_fusion": True}, "mix the taps differently"),
    ("zlab", "none", {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}, "rotate the whole head"),
    ("speculators", "none", {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}, "rotate the whole head"),
    ("zlab", "vanilla", SHIFTED, "--format deepspec"),
    ("zlab", "dcoco", SHIFTED, "--format dcoco"),
    ("zlab", "projected", {}, "codebooks: false"),
    ("zlab", "domino", {**SHIFTED, "block_size": 1}, "at least 2"),
    ("deepspec", "vanilla", {}, "predict p"),
    ("deepspec", "none", {**SHIFTED, "causal": True}, "whole block"),
    ("deepspec", "domino", SHIFTED, "--format zlab"),
    ("speculators", "domino", SHIFTED, "--format zlab"),
    ("speculators", "none", {"causal": True}, "add a sliding_window"),
    ("speculators", "rnn", {}, "one slot earlier"),
    ("dcoco", "none", {}, "choose another --format"),
]


@pytest.mark.parametrize(("name", "corrector", "options", "reason"), REFUSED)
def test_refuses_with_the_reason(
    name: str, corrector: str, options: dict[str, bool], reason: str, tmp_path: Path
) -> None:
    checkpoint = made(corrector, **options)
    with pytest.raises(ValueError, match=f"format {name} cannot express") as caught:
        format_named(name).save(checkpoint, tmp_path / "out", rows())
    assert reason in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["zlab", "deepspec", "speculators"])
def test_a_tap_of_the_last_layer_is_not_written(name: str, tmp_path: Path) -> None:
    checkpoint = made(**SHIFTED)
    checkpoint = replace(checkpoint, target=replace(checkpoint.target, taps=(1, 5)))
    with pytest.raises(ValueError, match="tap 5 is the last layer"):
        format_named(name).save(checkpoint, tmp_path / "out", rows())
    assert not (tmp_path / "out").exists()


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


def edited(folder: Path, config: dict[str, object], nested: dict[str, object]) -> None:
    path = folder / "config.json"
    found = json.loads(path.read_text())
    inner = found.get("transformer_layer_config", found.get("dflash_config", found))
    for place, changes in ((found, config), (inner, nested)):
        for name, value in changes.items():
            place.pop(name, None)
            if value is not None:
                place[name] = value
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("name", "corrector", "config", "nested", "message"),
    [
        ("zlab", "none", {}, {"sample_from_anchor": None}, r'add "sample_from_anchor": false if slot i predicts'),
        ("zlab", "domino", {}, {"shift_label": None}, r'add "shift_label": false if'),
        ("zlab", "domino", {}, {"sample_from_anchor": False}, "True in one place and False in another"),
        ("zlab", "none", {}, {"target_layer_ids": None}, r'add "target_layer_ids": \[...\], where i is the output of'),
        ("zlab", "none", {}, {"mask_token_id": None}, 'does not say mask_token_id'),
        ("zlab", "none", {}, {"mask_token_id": 40}, r"outside the vocabulary 0\.\.39"),
        ("zlab", "none", {}, {"target_layer_ids": [1, 3, 4]}, "follows from 3 taps"),
        ("zlab", "none", {}, {"target_layer_ids": [1, 6]}, "out of range: the target has 6 layers"),
        ("zlab", "none", {}, {"target_layer_ids": [1, 5]}, "behind the final norm"),
        ("zlab", "none", {}, {"target_layer_ids": [3, 3]}, "names a layer twice"),
        ("zlab", "none", {"block_size": 8}, {}, "block_size is 4 in one place and 8 in another"),
        ("zlab", "none", {"head_dim": 16}, {}, "the fields say"),
        ("zlab", "none", {"num_hidden_layers": 3}, {}, "'layers.2.input_layernorm.weight' is missing|is missing"),
        ("zlab", "none", {"layer_types": ["full_attention", "sliding_attention"]}, {}, "one window for all layers"),
        ("zlab", "none", {"rope_theta": 5.0}, {}, "rope_theta is 10000.0 in one place and 5.0 in another"),
        ("zlab", "none", {"partial_rotary_factor": 0.5}, {}, "partial_rotary_factor is 0.5; .* rotate the whole head"),
        ("zlab", "none", {"rope_scaling": {"partial_rotary_factor": 0.5}}, {}, "partial_rotary_factor is 0.5"),
        ("zlab", "none", {}, {"use_swa": True}, "use_swa is true, but it does not say swa_window_size"),
        ("zlab", "none", {"use_sliding_window": True, "layer_types": None, "sliding_window": 9}, {},
         "use_sliding_window is true, but it does not say layer_types"),
        ("speculators", "none", {}, {"use_sliding_window": True, "layer_types": None, "sliding_window": 9},
         r'transformer_layer_config: .* add "layer_types": \["sliding_attention"'),
        ("zlab", "domino", {}, {"pure_draft_prefix_len": 2}, "leaves one slot uncorrected"),
        ("zlab", "domino", {}, {"emb_dim": 5}, "emb_dim is 5, but the weights have 6"),
        ("zlab", "none", {}, {"projector_type": "dspark"}, "'dspark' is unknown"),
        ("zlab", "selector", {}, {"selector_top_k": None}, "go together"),
        ("deepspec", "vanilla", {"sample_from_anchor": None}, {}, 'add "sample_from_anchor": false if'),
        ("deepspec", "vanilla", {"target_layer_ids": [-1, 3]}, {}, "output of the embedding"),
        ("deepspec", "vanilla", {"markov_rank": 5}, {}, "markov_rank is 5, but the weights have 6"),
        ("speculators", "none", {"sample_from_anchor": None}, {}, 'add "sample_from_anchor": false if'),
        ("speculators", "none", {"aux_hidden_state_layer_ids": None}, {}, r"HF hidden_states\[i\]"),
        ("speculators", "none", {"aux_hidden_state_layer_ids": [0, 2]}, {}, "output of the embedding"),
        ("speculators", "none", {"draft_vocab_size": 9}, {}, "needs the tensors t2d and d2t"),
    ],
)  # fmt: skip
def test_files_that_leave_something_open_or_are_wrong(
    name: str, corrector: str, config: dict[str, object], nested: dict[str, object], message: str, tmp_path: Path
) -> None:
    shifted = SHIFTED if name == "deepspec" or corrector == "domino" else {}
    format_named(name).save(made(corrector, **shifted), tmp_path / "out", rows())
    edited(tmp_path / "out", config, nested)
    with pytest.raises(ValueError, match=message):
        read_folder(tmp_path / "out")


def test_trained_convolutions_are_refused(tmp_path: Path) -> None:
    format_named("speculators").save(made("selector"), tmp_path / "out", rows())
    path = tmp_path / "out/model.safetensors"
    tensors = load_file(path)
    tensors["layers.0.mlp_conv.base_kernel"][0, 1, 3] = 0.5
    save_file(tensors, path)
    with pytest.raises(ValueError, match="trained convolution of DFlash 2"):
        read_folder(tmp_path / "out")


def test_unknown_tensors_and_folders(tmp_path: Path) -> None:
    exported(made(), "zlab", tmp_path / "out")
    path = tmp_path / "out/model.safetensors"
    save_file({**load_file(path), "mask_embedding": torch.zeros(32)}, path)
    with pytest.raises(ValueError, match="'mask_embedding', so the drafter would differ"):
        read_folder(tmp_path / "out")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="convert the weights to safetensors"):
        read_folder(tmp_path / "out")
    (tmp_path / "out/config.json").write_text("{}")
    with pytest.raises(ValueError, match="neither dflash_config"):
        read_folder(tmp_path / "out")
    (tmp_path / "out/config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json:1: broken JSON"):
        read_folder(tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=r"holds no config.json"):
        read_folder(tmp_path)


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
    assert "SGLang refuses sample_from_anchor" in zlab.cautions(made(**SHIFTED))[0]
    assert zlab.cautions(made("domino", **SHIFTED)) == ["vLLM has no Domino; SGLang does"]
    speculators = FORMATS["speculators"]
    assert "--format zlab" in speculators.cautions(made("selector"))[0]
    assert "sample_from_anchor: true of a DFlash drafter" in speculators.cautions(made(**SHIFTED))[0]
    assert speculators.cautions(made()) == speculators.cautions(made("vanilla", **SHIFTED)) == []
    assert "served without it" in FORMATS["dcoco"].cautions(made("dcoco"))[-1]


def test_window_may_be_written_in_either_place(tmp_path: Path) -> None:
    format_named("zlab").save(made(causal=True, sliding_window=9), tmp_path / "out")
    edited(tmp_path / "out", {"layer_types": None, "sliding_window": None}, {})
    assert read_folder(tmp_path / "out").drafter == made(causal=True, sliding_window=9).drafter
    edited(tmp_path / "out", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9}, {"swa_window_size": None})
    assert read_folder(tmp_path / "out").drafter == made(causal=True, sliding_window=9).drafter
    edited(tmp_path / "out", {"sliding_window": 8}, {"swa_window_size": 9})
    with pytest.raises(ValueError, match="the sliding window is 8 in one place and 9 in another"):
        read_folder(tmp_path / "out")
