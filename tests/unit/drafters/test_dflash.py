"""What a block may depend on, names of the weights, precision, errors."""

from __future__ import annotations

import copy

import pytest
import torch

from specdraft.drafters import DFlash
from specdraft.packing import JoinedLinears, can_pack, packed_linears
from specdraft.types import TargetSpec


def forward_with_gradients(drafter, blocks, row: int, block: int, slot: slice):
    """Gradients of one block's slots with respect to the features and the embeddings."""
    features, embeds = (x.clone().requires_grad_() for x in (blocks.features, blocks.embeds))
    out = drafter(features, embeds, *blocks.tensors()[2:])
    weights = torch.randn_like(out[row, block, slot])  # a plain sum after a norm has almost no gradient
    return torch.autograd.grad((out[row, block, slot] * weights).sum(), [features, embeds])


def test_context_is_the_own_document_strictly_before_the_anchor(make_blocks, spec) -> None:
    blocks = make_blocks()
    drafter = DFlash(spec, num_layers=2, block_size=4, init_std=0.2)
    for row in range(2):
        for block, anchor in enumerate(blocks.anchors[row].tolist()):
            grad, _ = forward_with_gradients(drafter, blocks, row, block, slice(0, 1))
            touched = grad.abs().sum(-1) > 0
            ids = blocks.document_ids
            want = torch.zeros_like(touched)
            want[row] = (ids[row] == ids[row, anchor]) & (torch.arange(ids.shape[1]) < anchor)
            assert torch.equal(touched, want)


def test_features_at_or_behind_the_anchor_change_nothing(make_blocks, spec) -> None:
    blocks = make_blocks(((14,), (12,)))
    drafter = DFlash(spec, num_layers=2, block_size=4)
    before = drafter(*blocks.tensors())
    for row in range(2):
        anchor = int(blocks.anchors[row, 2])
        blocks.features[row, anchor:] += 100
    after = drafter(*blocks.tensors())
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


def test_window_bounds_the_context_of_every_slot(make_blocks, spec) -> None:
    blocks = make_blocks(((20,), (20,)), ragged=False)
    drafter = DFlash(spec, num_layers=1, block_size=4, init_std=0.2, sliding_window=6)
    anchor = int(blocks.anchors[0, -1])
    for slot in range(4):
        grad, _ = forward_with_gradients(drafter, blocks, 0, 4, slice(slot, slot + 1))
        touched = (grad[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
        assert touched == list(range(max(0, anchor + slot - 5), anchor))


@pytest.mark.parametrize("causal", [False, True])
def test_a_slot_depends_on_existing_slots_of_its_block_only(causal, make_blocks, spec) -> None:
    blocks = make_blocks()
    blocks.slots[0, 2] = torch.tensor([True, True, True, False])
    drafter = DFlash(spec, num_layers=2, block_size=4, init_std=0.2, causal=causal)
    for slot in range(3):
        _, grad = forward_with_gradients(drafter, blocks, 0, 2, slice(slot, slot + 1))
        touched = grad.abs().sum(-1) > 0
        want = torch.zeros_like(touched)
        want[0, 2, : slot + 1 if causal else 3] = True
        assert torch.equal(touched, want)


def test_state_dict_has_the_published_names() -> None:
    spec = TargetSpec("t", hidden_size=16, vocab_size=9, num_layers=8, num_attention_heads=2, head_dim=4)
    state = DFlash(spec).state_dict()
    per_layer = [
        *(f"self_attn.{x}_proj.weight" for x in "qkvo"), "self_attn.q_norm.weight", "self_attn.k_norm.weight",
        *(f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")),
        "input_layernorm.weight", "post_attention_layernorm.weight",
    ]  # fmt: skip
    names = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    names |= {f"layers.{i}.{name}" for i in range(5) for name in per_layer}
    assert set(state) == names
    assert len(state) == 58
    assert state["fc.weight"].shape == (16, 5 * 16)
    assert state["layers.0.self_attn.q_proj.weight"].shape == (8, 16)
    extended = DFlash(spec, tap_norm=True).state_dict()
    assert set(extended) - names == {f"tap_norms.{i}.weight" for i in range(5)}


def test_sizes_come_from_the_spec_unless_given(spec) -> None:
    drafter = DFlash(spec, num_attention_heads=6, num_key_value_heads=3, head_dim=4, intermediate_size=10, num_layers=1)
    shapes = {name: tuple(p.shape) for name, p in drafter.layers[0].named_parameters()}
    assert shapes["self_attn.q_proj.weight"] == (24, 24)
    assert shapes["self_attn.k_proj.weight"] == (12, 24)
    assert shapes["mlp.gate_proj.weight"] == (10, 24)
    assert DFlash(spec, num_layers=1).layers[0].mlp.gate_proj.weight.shape == (40, 24)


def test_initial_weights_and_meta_construction(spec) -> None:
    with torch.device("meta"):
        drafter = DFlash(spec, num_layers=2)
    drafter.to_empty(device="cpu")
    drafter.reset_parameters()
    for name, parameter in drafter.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            assert 0.018 < float(parameter.std()) < 0.022, name


def test_taps_with_massive_activations_need_their_own_norm(make_blocks, spec) -> None:
    """One activation of 27,776 in one tap must not hide a change of another tap."""
    blocks = make_blocks()
    blocks.features = torch.randn_like(blocks.features)
    blocks.features[..., 0] = 27776
    changed = copy.deepcopy(blocks)
    changed.features[..., spec.hidden_size :] = torch.randn_like(changed.features[..., spec.hidden_size :])
    effect = {}
    for tap_norm in (False, True):
        torch.manual_seed(1)
        drafter = DFlash(spec, num_layers=1, tap_norm=tap_norm)
        before, after = drafter.fuse(blocks.features)[0], drafter.fuse(changed.features)[0]
        effect[tap_norm] = float((before - after).norm() / before.norm())
    assert effect[False] < 1e-2
    assert effect[True] > 0.3


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_features_and_autocast(autocast, make_blocks, spec) -> None:
    blocks = make_blocks()
    blocks.features = blocks.features.bfloat16()
    drafter = DFlash(spec, num_layers=2, block_size=4, tap_norm=True)
    wide = drafter(blocks.features.float(), *blocks.tensors()[1:])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = drafter(*blocks.tensors())
        cache = drafter.new_cache(2, 8)
        drafter.extend(blocks.features[:, :8], cache)
        cache.advance(8)
        drafted = drafter.draft(blocks.embeds[:, 0], cache)
    assert torch.isfinite(drafted).all()
    if not autocast:
        assert torch.equal(out, wide)
    torch.testing.assert_close(out.float(), wide, atol=0.1, rtol=0.1)
    out.float().square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in drafter.parameters())


def test_bfloat16_parameters_keep_exact_rotations(make_blocks, spec) -> None:
    blocks = make_blocks()
    blocks.position_ids = blocks.position_ids + 10_000
    drafter = DFlash(spec, num_layers=1, block_size=4).bfloat16()
    cos, _ = drafter.rope(blocks.position_ids)
    assert cos.dtype == torch.float32
    assert torch.equal(cos, DFlash(spec, num_layers=1).rope(blocks.position_ids)[0])
    assert drafter(*blocks.tensors()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"sliding_window": 0}, "sliding_window must be at least 1, got 0"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "4 query heads do not divide into 3 groups"),
        ({"block_size": 1}, "block_size 1 leaves nothing to draft"),
        ({"dropout": 1.0}, "0 <= dropout < 1, got 1.0"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type 'dynamic' is not supported"),
    ],
)
def test_bad_options_are_refused(options, message, spec) -> None:
    with pytest.raises(ValueError, match=message):
        DFlash(spec, **options)


def test_wrong_shapes_are_named(make_blocks, spec) -> None:
    blocks = make_blocks()
    drafter = DFlash(spec, num_layers=1, block_size=4)
    features, embeds, *rest = blocks.tensors()
    with pytest.raises(ValueError, match=r"features are 71 wide, the drafter expects 3 taps \[1, 3, 4\] of 24 = 72"):
        drafter(features[..., 1:], embeds, *rest)
    with pytest.raises(ValueError, match=r"embeds .* with B <= 4"):
        drafter(features, torch.randn(2, 5, 5, 24), *rest)
    with pytest.raises(ValueError, match=r"slots is \(2, 5, 3\) but must be \(2, 5, 4\)"):
        drafter(features, embeds, rest[0], rest[1][..., :3], *rest[2:])
    with pytest.raises(ValueError, match="position_ids is"):
        drafter(features, embeds, *rest[:3], rest[3][:, 1:])
    with pytest.raises(ValueError, match=r"with b <= 4"):
        drafter.draft(torch.randn(1, 5, 24), drafter.new_cache(1, 4))


def test_checkpoint_facts_say_how_to_use_the_weights(spec) -> None:
    facts = DFlash(spec, num_layers=1, block_size=8, sample_from_anchor=True, causal=True).extra_state_for_checkpoint()
    assert facts["sample_from_anchor"] is True
    assert facts["block_size"] == 8
    assert facts["causal"] is True
    assert facts["sliding_window"] is None
    assert DFlash(spec, sample_from_anchor=True).num_drafts == DFlash(spec).num_drafts + 1


def test_layer_fusion_gives_every_layer_its_own_mixture(make_blocks, spec) -> None:
    """``c_l = hidden_norm(fc(sum_t softmax(mix_l)_t norm_t(tap_t)))`` (after DFlare, arXiv 2606.02091)."""
    features = make_blocks().features
    drafter = DFlash(spec, num_layers=2, block_size=4, layer_fusion=True, tap_norm=True)
    assert torch.equal(drafter.tap_mix, torch.zeros(2, 3))
    assert drafter.fc.weight.shape == (24, 24)
    torch.nn.init.normal_(drafter.tap_mix)
    for layer, context in enumerate(drafter.fuse(features)):
        shares = torch.softmax(drafter.tap_mix[layer], -1)
        taps = [norm(x) for norm, x in zip(drafter.tap_norms, features.split(24, -1), strict=True)]
        mixed = sum(share * tap for share, tap in zip(shares, taps, strict=True))
        torch.testing.assert_close(context, drafter.hidden_norm(mixed @ drafter.fc.weight.T), atol=1e-5, rtol=1e-5)
    drafter(*make_blocks().tensors()).square().mean().backward()
    assert (drafter.tap_mix.grad.abs() > 0).all()
    assert drafter.fuse(features)[0].shape == (*features.shape[:2], 24)
    shared = DFlash(spec, num_layers=2).fuse(features)
    assert shared[0] is shared[1]


def test_folding_the_tap_norms_into_fc_changes_no_value_and_no_gradient(make_blocks, spec) -> None:
    """Training folds the weights of the norms into ``fc``; decoding, without gradients, applies them to the taps."""
    features = make_blocks().features
    drafter = DFlash(spec, num_layers=1, tap_norm=True).double()
    for norm in drafter.tap_norms:
        torch.nn.init.normal_(norm.weight, mean=1.0)
    width = spec.hidden_size
    taps = [norm(x.double()) for norm, x in zip(drafter.tap_norms, features.split(width, -1), strict=True)]
    wanted = drafter.hidden_norm(drafter.fc(torch.cat(taps, -1)))
    probe = torch.randn_like(wanted)
    parameters = [drafter.fc.weight, *(norm.weight for norm in drafter.tap_norms)]
    gradients = torch.autograd.grad((wanted * probe).sum(), parameters)
    with torch.no_grad():
        torch.testing.assert_close(drafter.fuse(features)[0], wanted)
    folded = drafter.fuse(features)[0]
    torch.testing.assert_close(folded, wanted)
    torch.testing.assert_close(torch.autograd.grad((folded * probe).sum(), parameters), gradients)


def test_dropout_disturbs_training_alone(make_blocks, spec) -> None:
    blocks = make_blocks().tensors()
    drafter = DFlash(spec, num_layers=2, block_size=4, dropout=0.5)
    plain = DFlash(spec, num_layers=2, block_size=4)
    plain.load_state_dict(drafter.state_dict())  # dropout leaves no names in a checkpoint
    features = make_blocks().features
    context = drafter.train().fuse(features)[0]
    assert 0.3 < (context == 0).float().mean() < 0.7
    assert not torch.equal(drafter(*blocks), plain(*blocks))
    torch.testing.assert_close(drafter.eval()(*blocks), plain(*blocks), atol=0, rtol=0)


@pytest.mark.skipif(not can_pack(torch.ones(2, 2)), reason="this build of torch has no oneDNN packing")
@pytest.mark.parametrize("options", [{}, {"tap_norm": True}, {"layer_fusion": True, "num_key_value_heads": 1}])
def test_joint_products_of_decoding_equal_the_separate_ones(options, make_blocks, spec) -> None:
    blocks = make_blocks()
    drafter = DFlash(spec, num_layers=2, block_size=4, init_std=0.2, **options).eval()

    @torch.inference_mode()
    def drafted() -> tuple[torch.Tensor, torch.Tensor]:
        cache = drafter.new_cache(2, 16)
        drafter.extend(blocks.features[:, :8], cache)
        cache.advance(torch.tensor([8, 5]))
        return drafter.draft(blocks.embeds[:, 0], cache), torch.stack(cache.keys + cache.values)

    plain = drafted()
    parts = [module for module in drafter.modules() if hasattr(module, "joint_products")]
    assert len(parts) == 4  # attention and MLP of two layers
    for turn in range(2):
        with packed_linears(drafter):
            calls = {
                part: [value for value in vars(part).values() if isinstance(value, JoinedLinears)] for part in parts
            }
            assert all(calls.values())
            for got, want in zip(drafted(), plain, strict=True):
                torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
            assert all(call._product._packed is not None for each in calls.values() for call in each)
        if turn == 0:  # trained on: the copy must not outlive the decoding
            with torch.no_grad():
                for weight in drafter.parameters():
                    weight.mul_(1.5)
            before, plain = plain, drafted()
            assert not torch.allclose(before[0], plain[0], atol=1e-2)
