"""What a format cannot express is not written, and what a file leaves open is not guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drafter_files import SHIFTED, exported, made, rows
from safetensors.torch import load_file, save_file

from specdraft.checkpoints import format_named, read_folder

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
    ("deepspec", "none", {**SHIFTED, "conv_kernel_size": 2}, "has no convolutions"),
    ("speculators", "none", {"conv_kernel_size": 2}, "only DFlash 2, with a selector, has convolutions"),
    ("zlab", "domino", {**SHIFTED, "conv_kernel_size": 2}, "Domino's loaders have no convolutions"),
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
        ("zlab", "none", {"num_hidden_layers": 3}, {}, r"the tensor 'layers\.2\.[a-z_.]+\.weight' is missing from"),
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


@pytest.mark.parametrize(("name", "inner"), [("speculators", False), ("zlab", True)])
def test_convolutions_need_their_sizes(name: str, inner: bool, tmp_path: Path) -> None:
    format_named(name).save(made("selector", conv_kernel_size=2, conv_group_size=8), tmp_path / "out", rows())
    for field, message in (("conv_group_size", "conv_group_size"), ("conv_kernel_size", "conv_kernel_size")):
        changes: dict[str, object] = {field: None}
        edited(tmp_path / "out", {} if inner else changes, changes if inner else {})
        with pytest.raises(ValueError, match=f"does not say {message}"):
            read_folder(tmp_path / "out")
        edited(tmp_path / "out", {} if inner else {field: 4}, {field: 4} if inner else {})
    with pytest.raises(ValueError, match=r"attention_conv\.base_kernel is \(2, 2, 32\), the fields say \(2, 4, 32\)"):
        read_folder(tmp_path / "out")


@pytest.mark.parametrize("name", ["speculators", "zlab"])
def test_announced_convolutions_must_be_there(name: str, tmp_path: Path) -> None:
    format_named(name).save(made("selector", conv_kernel_size=2, conv_group_size=8), tmp_path / "out", rows())
    path = tmp_path / "out/model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if "_conv." not in name}, path)
    with pytest.raises(ValueError, match="conv_kernel_size is 2, but the weights hold no convolutions"):
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


def test_window_may_be_written_in_either_place(tmp_path: Path) -> None:
    format_named("zlab").save(made(causal=True, sliding_window=9), tmp_path / "out")
    edited(tmp_path / "out", {"layer_types": None, "sliding_window": None}, {})
    assert read_folder(tmp_path / "out").drafter == made(causal=True, sliding_window=9).drafter
    edited(tmp_path / "out", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9}, {"swa_window_size": None})
    assert read_folder(tmp_path / "out").drafter == made(causal=True, sliding_window=9).drafter
    edited(tmp_path / "out", {"sliding_window": 8}, {"swa_window_size": 9})
    with pytest.raises(ValueError, match="the sliding window is 8 in one place and 9 in another"):
        read_folder(tmp_path / "out")
