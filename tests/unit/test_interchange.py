"""Exported folders as drafters: loading, fitting, describing, and the published definition as a reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from specdraft.correctors import DominoCorrector
from specdraft.drafters import DFlash
from specdraft.interchange import export, inspect, module_from_folder
from specdraft.module import DraftingModule
from specdraft.targets import TargetConfig

H, HEADS, KV, D, INNER, LAYERS, VOCAB, EPS, THETA = 32, 4, 2, 8, 40, 2, 64, 1e-6, 10000.0


def published(folder: Path, **nested: Any) -> dict[str, Tensor]:
    """A folder as z-lab's drafters are published, written by hand; returns the tensors."""
    torch.manual_seed(5)
    shapes = {"fc.weight": (H, 2 * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for i in range(LAYERS):
        shapes |= {
            f"layers.{i}.self_attn.q_proj.weight": (HEADS * D, H),
            f"layers.{i}.self_attn.k_proj.weight": (KV * D, H),
            f"layers.{i}.self_attn.v_proj.weight": (KV * D, H),
            f"layers.{i}.self_attn.o_proj.weight": (H, HEADS * D),
            f"layers.{i}.self_attn.q_norm.weight": (D,),
            f"layers.{i}.self_attn.k_norm.weight": (D,),
            f"layers.{i}.mlp.gate_proj.weight": (INNER, H),
            f"layers.{i}.mlp.up_proj.weight": (INNER, H),
            f"layers.{i}.mlp.down_proj.weight": (H, INNER),
            f"layers.{i}.input_layernorm.weight": (H,),
            f"layers.{i}.post_attention_layernorm.weight": (H,),
        }
    tensors = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 4,
        "num_target_layers": 4,
        "num_hidden_layers": LAYERS,
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": D,
        "layer_types": ["full_attention"] * LAYERS,
        "sliding_window": None,
        "rope_theta": THETA,
        "rope_scaling": None,
        "rms_norm_eps": EPS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 2], "sample_from_anchor": False, **nested},
    }
    if taps := nested.get("conv_kernel_size"):
        for i in range(LAYERS):
            for part in ("attention_conv", "mlp_conv"):
                tensors[f"layers.{i}.{part}.base_kernel"] = 0.5 * torch.randn(2, taps, H)
                rows = 2 * taps * H // nested["conv_group_size"]
                tensors[f"layers.{i}.{part}.kernel_projection.weight"] = 0.1 * torch.randn(rows, H)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def rotated(x: Tensor, position: int) -> Tensor:
    angle = position * THETA ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    a, b = x[: D // 2], x[D // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


def convolved(x: Tensor, source: Tensor, w: dict[str, Tensor], part: str, side: int) -> Tensor:
    """DFlash 2: ``y_t = sum_i (b_i + d_t,i) x_(t-i)`` with d from the sublayer's normed input; x if there is none."""
    if f"{part}.base_kernel" not in w:
        return x
    base = w[f"{part}.base_kernel"]
    rows = w[f"{part}.kernel_projection.weight"].view(2, base.shape[1], -1, H)
    group = H // rows.shape[2]
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for i in range(min(base.shape[1], t + 1)):
            dynamic = (rows[side, i] @ source[t]).repeat_interleave(group)
            out[t] += (base[side, i] + dynamic) * x[t - i]
    return out


def reference(t: dict[str, Tensor], features: Tensor, block: Tensor) -> Tensor:
    """Hidden states of one block from the published definition, position by position and head by head.

    Keys and values of a layer are the projections of the fused features and of the block; a slot of the block sees
    all of them. ``features`` ``[n, T H]`` at positions 0..n-1, ``block`` ``[B, H]`` behind them.
    """
    context = norm(features @ t["fc.weight"].T, t["hidden_norm.weight"])
    n, x = len(context), block
    for i in range(LAYERS):
        w = {name.removeprefix(f"layers.{i}."): value for name, value in t.items() if name.startswith(f"layers.{i}.")}
        source = norm(x, w["input_layernorm.weight"])
        inner = convolved(source, source, w, "attention_conv", 0)
        both = torch.cat([context, inner])
        keys = (both @ w["self_attn.k_proj.weight"].T).view(len(both), KV, D)
        values = (both @ w["self_attn.v_proj.weight"].T).view(len(both), KV, D)
        queries = (inner @ w["self_attn.q_proj.weight"].T).view(len(inner), HEADS, D)
        out = torch.zeros(len(inner), HEADS, D, dtype=x.dtype)
        for s in range(len(inner)):
            for h in range(HEADS):
                g = h // (HEADS // KV)
                q = rotated(norm(queries[s, h], w["self_attn.q_norm.weight"]), n + s)
                ks = torch.stack([rotated(norm(keys[j, g], w["self_attn.k_norm.weight"]), j) for j in range(len(both))])
                out[s, h] = (ks @ q / D**0.5).softmax(0) @ values[:, g]
        x = x + convolved(out.flatten(1) @ w["self_attn.o_proj.weight"].T, source, w, "attention_conv", 1)
        source = norm(x, w["post_attention_layernorm.weight"])
        inner = convolved(source, source, w, "mlp_conv", 0)
        gate = torch.nn.functional.silu(inner @ w["mlp.gate_proj.weight"].T) * (inner @ w["mlp.up_proj.weight"].T)
        x = x + convolved(gate @ w["mlp.down_proj.weight"].T, source, w, "mlp_conv", 1)
    return norm(x, t["norm.weight"])


@pytest.mark.parametrize("nested", [{}, {"conv_kernel_size": 2, "conv_group_size": 16}], ids=["DFlash", "DFlash 2"])
@torch.no_grad()
def test_slot_logits_equal_those_of_the_published_definition(
    nested: dict[str, Any], tiny_target: Path, tmp_path: Path
) -> None:
    tensors = {name: value.double() for name, value in published(tmp_path / "drafter", **nested).items()}
    module = module_from_folder(str(tmp_path / "drafter"), target=str(tiny_target))
    assert isinstance(module.drafter, DFlash)
    prompt = torch.tensor([[7, 20, 31, 8, 15]])
    features = module.target.features(prompt).features
    assert features is not None
    # hidden_states[i + 1] of transformers itself
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float32)
    states = model(prompt, output_hidden_states=True).hidden_states
    torch.testing.assert_close(features, torch.cat([states[1], states[3]], -1), rtol=1e-4, atol=1e-4)
    block = torch.tensor([[22, 3, 3, 3]])  # the anchor and the mask token
    wanted = reference(tensors, features[0].double(), model.get_input_embeddings()(block)[0].double())
    cache = module.drafter.new_cache(1, 16)
    module.drafter.extend(features, cache)
    cache.advance(prompt.shape[1])
    hidden = module.drafter.draft(module.target.embed(block), cache)
    logits = wanted @ model.get_output_embeddings().weight.double().T
    torch.testing.assert_close(module.draft_head(hidden)[0].double(), logits, rtol=1e-4, atol=1e-4)
    assert (module.drafter.first_slot, module.drafter.num_drafts) == (1, 3)


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        ({"target_layer_ids": [0, 4]}, "out of range"),
        ({"target_layer_ids": [0, 1, 2]}, "follows from 3 taps"),
        ({"mask_token_id": 64}, "outside the vocabulary"),
        ({"sample_from_anchor": None}, 'add "sample_from_anchor"'),
    ],
)
def test_wrong_files_are_caught_before_decoding(
    nested: dict[str, Any], message: str, tiny_target: Path, tmp_path: Path
) -> None:
    published(tmp_path / "drafter", **nested)
    with pytest.raises(ValueError, match=message):
        module_from_folder(str(tmp_path / "drafter"), target=str(tiny_target))


def started(tiny_target: Path, drafter: Any, taps: list[int], mask: int = 3) -> DraftingModule:
    module = DraftingModule(TargetConfig(str(tiny_target), taps=taps, mask_token_id=mask), drafter=drafter)
    module.configure_model()
    return module


def test_warm_start_takes_a_public_drafter_that_fits(tiny_target: Path, tmp_path: Path) -> None:
    tensors = published(tmp_path / "drafter")
    path = str(tmp_path / "drafter")
    fits = dict(num_layers=2, block_size=4, intermediate_size=INNER)
    module = started(tiny_target, lambda spec: DFlash(spec, **fits), [0, 2])
    assert module.warm_start(path)
    assert all(torch.equal(module.drafter.state_dict()[name], tensor) for name, tensor in tensors.items())
    cases: list[tuple[dict[str, Any], list[int], int, str]] = [
        ({}, [0, 1], 3, r"target taps \[0, 2\], this run has \[0, 1\]"),
        ({}, [0, 2], 2, "target mask_token_id 3, this run has 2"),
        ({"sample_from_anchor": True}, [0, 2], 3, "drafter sample_from_anchor False, this run has True"),
        ({"block_size": 8}, [0, 2], 3, "drafter block_size 4, this run has 8"),
        ({"tap_norm": True}, [0, 2], 3, "tap_norms.0.weight of shape None, this run has"),
        ({"num_layers": 1}, [0, 2], 3, "layers.1.input_layernorm.weight of shape"),
    ]
    for options, taps, mask, message in cases:
        other = started(tiny_target, lambda spec, o=options: DFlash(spec, **{**fits, **o}), taps, mask)
        with pytest.raises(ValueError, match=message):
            other.warm_start(path)


def test_a_folder_without_a_target_asks_for_it(tmp_path: Path) -> None:
    published(tmp_path / "drafter")
    with pytest.raises(ValueError, match="name it with --target"):
        module_from_folder(str(tmp_path / "drafter"))


def test_the_last_layer_is_no_tap_even_where_the_file_does_not_know_it(tiny_target: Path, tmp_path: Path) -> None:
    published(tmp_path / "drafter", target_layer_ids=[0, 3])
    path = tmp_path / "drafter/config.json"
    config = json.loads(path.read_text())
    config.pop("num_target_layers", None)
    config["dflash_config"].pop("num_target_layers", None)
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="tap 3 is the last layer"):
        module_from_folder(str(tmp_path / "drafter"), target=str(tiny_target))


def test_a_folder_without_a_target_is_not_said_to_fit_deepspec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(tmp_path / "drafter", sample_from_anchor=True)
    inspect(str(tmp_path / "drafter"))
    said = capsys.readouterr().out
    assert "export deepspec    refused" in said
    assert "give it with --target" in said


def test_a_folder_for_another_target_is_refused(tiny_target: Path, tmp_path: Path) -> None:
    published(tmp_path / "drafter")
    path = tmp_path / "drafter/config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "vocab_size": 99}))
    with pytest.raises(ValueError, match="target vocab_size 99, this run has 64"):
        module_from_folder(str(tmp_path / "drafter"), target=str(tiny_target))


def test_own_epsilon_of_a_public_drafter(tiny_target: Path, tmp_path: Path) -> None:
    published(tmp_path / "drafter")
    path = tmp_path / "drafter/config.json"
    path.write_text(path.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.001'))
    module = module_from_folder(str(tmp_path / "drafter"), target=str(tiny_target))
    assert module.drafter.spec.rms_norm_eps == 0.001
    plain = started(tiny_target, lambda spec: DFlash(spec, 2, 4, intermediate_size=INNER), [0, 2])
    with pytest.raises(ValueError, match=r"rms_norm_eps 0\.001, this run has"):
        plain.warm_start(str(tmp_path / "drafter"))


def test_convert_and_describe(tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published(tmp_path / "drafter", sample_from_anchor=True)
    source = str(tmp_path / "drafter")
    export(source, "deepspec", str(tmp_path / "deepspec"), target=str(tiny_target), dtype="bfloat16")
    assert "slot i predicts the token at p+1+i, 4 drafts per round" in capsys.readouterr().out
    inspect(str(tmp_path / "deepspec"))
    text = capsys.readouterr().out
    assert "deepspec (" in text
    assert f"{tiny_target}: width 32, vocabulary 64, 4 layers" in text
    assert "[0, 2] (outputs of these layers" in text
    assert "parameters in bfloat16" in text
    assert "sample_from_anchor: true" in text
    assert "export zlab        possible" in text
    assert "export dcoco       refused" in text
    assert "this format is DCOCO's" in text
    with pytest.raises(ValueError, match="the target's name"):
        export(source, "speculators", str(tmp_path / "speculators"))


@pytest.fixture
def gemma(tiny_target: Path, tmp_path: Path) -> Path:
    """A random Gemma 3, whose embedding module multiplies by the root of the width."""
    folder = tmp_path / "gemma"
    shutil.copytree(tiny_target, folder)
    config = Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=INNER, num_hidden_layers=4, num_attention_heads=HEADS,
        num_key_value_heads=KV, head_dim=D, max_position_embeddings=256, sliding_window=16,
    )  # fmt: skip
    Gemma3ForCausalLM(config).save_pretrained(folder)
    return folder


def test_scale_inside_gemmas_embedding_is_exported(gemma: Path, tmp_path: Path) -> None:
    module = started(gemma, lambda spec: DFlash(spec, 1, 4, sample_from_anchor=True), [0, 2])
    content: dict[str, Any] = {"state_dict": module.state_dict(), "epoch": 0, "global_step": 0}
    module.on_save_checkpoint(content)
    torch.save(content, tmp_path / "last.ckpt")
    last, out = str(tmp_path / "last.ckpt"), tmp_path / "public"
    for name in ("deepspec", "speculators"):
        with pytest.raises(ValueError, match=r"target scaling \{'embedding': 5\.65685"):
            export(last, name, str(tmp_path / name))  # type: ignore[arg-type]
    export(last, "zlab", str(out))
    config = json.loads((out / "config.json").read_text())
    assert config["dflash_config"]["input_embedding_scale"] == pytest.approx(H**0.5)
    loaded = module_from_folder(str(out), target=str(gemma))
    ids = torch.arange(9)
    rows = loaded.target.model.get_input_embeddings().weight[ids]
    torch.testing.assert_close(loaded.target.embed(ids), rows * H**0.5)  # once, not twice
    # other projects write the factor as the model applies it, rounded to bf16
    for scale, fits in ((float(torch.tensor(H**0.5).bfloat16()), True), (1.0, False)):
        config["dflash_config"]["input_embedding_scale"] = scale
        (out / "config.json").write_text(json.dumps(config))
        if fits:
            assert module.warm_start(str(out))
        else:
            with pytest.raises(ValueError, match="target scaling"):
                module.warm_start(str(out))


def test_domino_folder_proposes_like_the_original(tiny_target: Path, tmp_path: Path) -> None:
    from specdraft.checkpoints import format_named
    from specdraft.checkpoints.lightning_file import from_content

    config = TargetConfig(str(tiny_target), taps=[0, 2], mask_token_id=3)
    module = DraftingModule(
        config,
        drafter=lambda spec: DFlash(spec, 1, 4, sample_from_anchor=True),
        corrector=lambda spec: DominoCorrector(spec, hidden=7, rank=6),
    )
    module.configure_model()
    for parameter in module.corrector.parameters():
        torch.nn.init.normal_(parameter)
    content: dict[str, Any] = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(content)
    format_named("zlab").save(from_content(content, "memory"), tmp_path / "out")
    again = module_from_folder(str(tmp_path / "out"))
    hidden, anchor = torch.randn(2, 4, H), torch.tensor([7, 9])
    logits = module.draft_head(hidden)
    for temperature in (0.0, 1.0):
        one, other = (
            m.corrector.propose(hidden, logits, anchor, temperature, torch.Generator().manual_seed(1), m.draft_head)
            for m in (module, again)
        )
        assert torch.equal(one.tokens, other.tokens)


def test_a_drafter_of_another_class_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"name": "t", "hidden_size": 8, "vocab_size": 30, "num_layers": 3, "taps": (0, 1), "mask_token_id": 5}
    spec["max_position_embeddings"] = 99
    facts = {"spec": spec, "drafter": {"class": "Mine", "block_size": 4}, "corrector": {"class": "NoCorrector"}}
    state = {"drafter.w": torch.zeros(8, 9), "draft_token_ids": torch.zeros(0, dtype=torch.int64)}
    torch.save({"specdraft": facts, "state_dict": state}, tmp_path / "mine.ckpt")
    inspect(str(tmp_path / "mine.ckpt"))
    text = capsys.readouterr().out
    for part in (
        "t: width 8, vocabulary 30, 3 layers",
        "Mine: block_size 4, 72 parameters",
        "NoCorrector, 0",
        "[0, 1]",
    ):
        assert part in text
    assert text.count("refused: the public formats hold DFlash drafters, not Mine") == 4
