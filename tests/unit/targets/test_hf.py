from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

from specdraft.packing import PackedLinear, can_pack
from specdraft.taps import evenly_spaced_taps
from specdraft.targets import HFTarget
from specdraft.types import DecodingTarget, TargetSpec

SIZES = dict(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)
CONFIGS = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=2),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "gemma2": Gemma2Config(
        **SIZES, head_dim=8, sliding_window=5, final_logit_softcapping=3.0, attn_logit_softcapping=2.0
    ),
    "gemma3": Gemma3TextConfig(
        **SIZES, head_dim=8, sliding_window=5, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "granite": GraniteConfig(**SIZES, embedding_multiplier=3.0, logits_scaling=2.0),
}
TAPS = [0, 2]


def build(family, attention):
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[family])
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    for name, parameter in model.named_parameters():  # norms and biases start at constants; make them matter
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape) * (0.3 if "norm" in name or "bias" in name else 0.1))
    return model.eval()


@pytest.fixture(params=list(CONFIGS))
def pair(request):
    reference = build(request.param, "eager")
    target = HFTarget(build(request.param, "eager"), name=request.param, taps=TAPS)
    return reference, target


def ids(rows, length, seed=1):
    return torch.randint(0, 97, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_features_equal_hidden_states(pair):
    reference, target = pair
    tokens = ids(2, 19)
    with torch.no_grad():
        states = reference(tokens, output_hidden_states=True).hidden_states
    expected = torch.cat([states[tap + 1] for tap in TAPS], -1)
    short, whole = target.features(tokens), target.features(tokens, last_hidden=True)
    assert short.hidden is None
    torch.testing.assert_close(short.features, expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(whole.features, short.features, atol=0, rtol=0)
    torch.testing.assert_close(whole.hidden, states[-1], atol=2e-5, rtol=1e-4)
    assert not short.features.is_inference()


def test_scale_of_the_embedding_is_that_of_the_rows_which_the_first_layer_reads(pair):
    reference, target = pair
    tokens = ids(2, 9)
    with torch.no_grad():
        expected = reference(tokens, output_hidden_states=True).hidden_states[0]
    rows = reference.get_input_embeddings().weight[tokens] * target.scales["embedding"]
    torch.testing.assert_close(rows, expected)
    torch.testing.assert_close(target.embed(tokens), expected)


def test_head_gives_the_models_logits(pair):
    reference, target = pair
    tokens = ids(2, 9)
    with torch.no_grad():
        expected = reference(tokens).logits
    torch.testing.assert_close(
        target.head(target.features(tokens, last_hidden=True).hidden), expected, atol=1e-4, rtol=1e-5
    )


def test_features_do_not_run_the_layers_above_the_last_tap(pair):
    _, target = pair
    ran = []
    for index, layer in enumerate(target.model.get_decoder().layers):
        layer.register_forward_pre_hook(lambda *_, index=index: ran.append(index))
    target.features(ids(1, 4))
    assert ran == [0, 1, 2]


def test_packed_rows_equal_separate_rows(pair):
    _, target = pair
    parts = [ids(1, length, seed=length) for length in (7, 1, 9)]
    row = torch.cat([*parts, torch.zeros(1, 3, dtype=torch.int64)], 1)
    documents = torch.tensor([[0] * 7 + [1] + [2] * 9 + [-1] * 3])
    out = target.features(row, document_ids=documents, last_hidden=True)
    start = 0
    for part in parts:
        alone = target.features(part, last_hidden=True)
        stop = start + part.shape[1]
        torch.testing.assert_close(out.features[:, start:stop], alone.features, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(out.hidden[:, start:stop], alone.hidden, atol=2e-5, rtol=1e-4)
        start = stop
    assert out.features.isfinite().all()


def prefill(target, tokens, lengths, capacity=40):
    """Prefill each row of ``tokens`` up to its own length in one ragged forward."""
    cache = target.new_cache(len(lengths), capacity)
    target.forward(tokens[:, : max(lengths)], cache)
    cache.advance(torch.tensor(lengths))
    return cache


def test_cached_forward_over_ragged_rows_equals_whole_forward(pair):
    reference, target = pair
    tokens, lengths, fresh = ids(3, 24), [11, 3, 7], 5
    cache = prefill(target, tokens, lengths)
    block = torch.stack([tokens[row, n : n + fresh] for row, n in enumerate(lengths)])
    out = target.forward(block, cache)
    assert cache.lengths.tolist() == lengths
    for row, n in enumerate(lengths):
        with torch.no_grad():
            whole = reference(tokens[row : row + 1, : n + fresh], output_hidden_states=True)
        torch.testing.assert_close(target.head(out.hidden[row]), whole.logits[0, n:], atol=1e-4, rtol=1e-5)
        expected = torch.cat([whole.hidden_states[tap + 1] for tap in TAPS], -1)[0, n:]
        torch.testing.assert_close(out.features[row], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", list(CONFIGS))
def test_lean_forward_equals_the_modules(family):
    lean, modules = (HFTarget(build(family, "eager"), name="x", taps=TAPS) for _ in range(2))
    assert (lean._lean is not None) == (family in ("llama", "qwen2", "qwen3"))
    modules._lean = None
    tokens = ids(3, 24)
    for lengths in ([11], [11, 3, 7]):
        outs = []
        for target in (lean, modules):
            cache = prefill(target, tokens[: len(lengths)], lengths)
            block = torch.stack([tokens[row, n : n + 5] for row, n in enumerate(lengths)])
            with torch.inference_mode():
                outs.append([target.forward(block, cache), target.forward(block[:, :1], cache)])
        for mine, reference in zip(*outs, strict=True):
            torch.testing.assert_close(mine.hidden, reference.hidden, atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(mine.features, reference.features, atol=1e-4, rtol=1e-4)


def test_lean_forward_shares_the_weights_of_the_modules():
    target = HFTarget(build("llama", "eager"), name="x", taps=TAPS)
    layer = target.model.model.layers[1]
    fused = target._lean._layers[1].qkv.weight
    assert layer.self_attn.q_proj.weight.data_ptr() == fused.data_ptr()
    assert layer.self_attn.v_proj.weight.untyped_storage().data_ptr() == fused.untyped_storage().data_ptr()
    fused.zero_()
    assert int(layer.self_attn.k_proj.weight.count_nonzero()) == 0


def test_other_shapes_of_a_family_run_their_own_modules():
    dynamic = LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    gelu = LlamaConfig(**SIZES, hidden_act="gelu")
    for config in (dynamic, gelu):
        assert HFTarget(AutoModelForCausalLM.from_config(config), name="x", taps=TAPS)._lean is None


def test_rejected_tokens_leave_no_trace(pair):
    _, target = pair
    tokens = ids(2, 20)
    cache = prefill(target, tokens, [9, 5])
    target.forward(ids(2, 6, seed=99), cache)  # a draft of which only two tokens are kept in the first row
    cache.advance(torch.tensor([0, 0]))
    block = torch.stack([tokens[0, 9:13], tokens[1, 5:9]])
    again = target.forward(block, cache)
    fresh = target.forward(block, prefill(target, tokens, [9, 5]))
    torch.testing.assert_close(again.hidden, fresh.hidden, atol=1e-6, rtol=1e-6)


def test_selected_and_inserted_rows_go_on_as_before(pair):
    _, target = pair
    tokens = ids(3, 24)
    cache = prefill(target, tokens, [11, 3, 7])
    cache.select(torch.tensor([2, 0]))
    assert cache.lengths.tolist() == [7, 11]
    newcomer = prefill(target, tokens[1:2], [3], capacity=4)
    cache.insert(torch.tensor([1]), newcomer)
    assert cache.lengths.tolist() == [7, 3]
    out = target.forward(torch.stack([tokens[2, 7:10], tokens[1, 3:6]]), cache)
    for row, (source, stop) in enumerate([(2, 10), (1, 6)]):
        alone = target.features(tokens[source : source + 1, :stop], last_hidden=True)
        torch.testing.assert_close(out.hidden[row], alone.hidden[0, -3:], atol=1e-4, rtol=1e-4)


def test_one_token_at_a_time_equals_a_block(pair):
    _, target = pair
    tokens = ids(1, 16)
    block_cache, step_cache = prefill(target, tokens, [9]), prefill(target, tokens, [9])
    block = target.forward(tokens[:, 9:14], block_cache).hidden
    for step in range(9, 14):
        hidden = target.forward(tokens[:, step : step + 1], step_cache).hidden
        step_cache.advance(1)
        torch.testing.assert_close(hidden[:, 0], block[:, step - 9], atol=1e-5, rtol=1e-4)


def test_last_layer_is_tapped_before_the_final_norm():
    target = HFTarget(build("llama", "eager"), name="x", taps=[3, 1])
    out = target.features(ids(1, 6), last_hidden=True)
    last, second = out.features.chunk(2, -1)  # in the order of the taps, not of the layers
    torch.testing.assert_close(target.model.model.norm(last), out.hidden)
    other = HFTarget(build("llama", "eager"), name="x", taps=[1]).features(ids(1, 6))
    torch.testing.assert_close(second, other.features)


def test_right_padding_is_harmless_and_positions_may_be_given(pair):
    _, target = pair
    tokens, documents = ids(2, 12), torch.zeros(2, 12, dtype=torch.int64)
    documents[1, 7:] = -1
    out = target.features(tokens, document_ids=documents).features
    torch.testing.assert_close(out[1:, :7], target.features(tokens[1:, :7]).features, atol=1e-5, rtol=1e-4)
    positions = torch.arange(12).expand(2, 12)
    torch.testing.assert_close(target.features(tokens, positions).features, target.features(tokens).features)


def test_a_whole_forward_does_not_see_the_window_as_full():
    near, far = ids(1, 20), ids(1, 20)
    far[0, 0] = (far[0, 0] + 1) % 97
    model = Qwen3Config(**SIZES, head_dim=8, use_sliding_window=True, sliding_window=3, max_window_layers=0)
    target = HFTarget(AutoModelForCausalLM.from_config(model), name="x", taps=[0])
    first, second = target.features(near).features, target.features(far).features
    assert torch.equal(first[:, 3:], second[:, 3:])  # one layer reaches two positions back
    assert not torch.allclose(first[:, 2], second[:, 2])


def test_autocast_around_does_not_change_the_target():
    target = HFTarget(build("llama", "eager"), name="x", taps=TAPS)
    tokens = ids(1, 8)
    plain = target.features(tokens).features
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = target.features(tokens).features
        cached = target.forward(tokens, target.new_cache(1, 8)).features
    assert torch.equal(inside, plain)
    torch.testing.assert_close(cached, plain, atol=1e-5, rtol=1e-4)


def test_errors_name_the_fix():
    target = HFTarget(build("llama", "eager"), name="x", taps=TAPS)
    cache = target.new_cache(2, 4)
    with pytest.raises(ValueError, match="3 rows of tokens"):
        target.forward(ids(3, 1), cache)
    with pytest.raises(ValueError, match="larger capacity"):
        target.forward(ids(2, 5), cache)
    with pytest.raises(RuntimeError, match=r"HFTarget\.forward"):
        target.model(ids(1, 3))
    target.features(ids(1, 3))  # an error in between leaves no pass behind


def test_moving_takes_everything_along():
    target = HFTarget(build("gemma2", "eager"), name="x", taps=TAPS)
    assert any(isinstance(module, PackedLinear) for module in target.model.modules()) == can_pack(torch.ones(1, 1))
    head = target.head
    assert target.to("cpu").head is head  # nothing to do
    target.to("meta")
    assert {p.device.type for p in target.model.parameters()} == {"meta"}
    assert target.device.type == target.head.weight.device.type == target.new_cache(1, 2).lengths.device.type == "meta"
    assert target.head.softcap == 3.0
    assert not any(isinstance(module, PackedLinear) for module in target.model.modules())


def test_fulfils_the_contract():
    target = HFTarget(build("qwen2", "eager"), name="x")
    assert isinstance(target, DecodingTarget)
    assert target.spec.taps == evenly_spaced_taps(4, 4)
    assert TargetSpec.from_dict(target.spec.to_dict()) == target.spec
    assert target.spec.architecture == type(target.model).__name__
