from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from specdraft import packing
from specdraft.packing import (
    PackedLinear,
    PackedWeight,
    can_pack,
    fewest_packed_rows,
    joined,
    pack_linears,
    packed_linears,
    unpack_linears,
)

needs_onednn = pytest.mark.skipif(not can_pack(torch.ones(2, 2)), reason="this build of torch has no oneDNN packing")


def frozen(bias=True, in_features=24, out_features=40):
    return nn.Linear(in_features, out_features, bias=bias).requires_grad_(False)


@pytest.fixture
def packs_from(monkeypatch):
    """Sets the rows from which products are packed, whatever this machine measures."""
    return lambda rows: monkeypatch.setattr(packing, "fewest_packed_rows", lambda: rows)


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (3, 24), (2, 7, 24), (200, 24)])
def test_equals_plain_linear(bias, shape, packs_from):
    packs_from(1)
    linear, x = frozen(bias), torch.randn(shape)
    layer = PackedLinear(linear)
    with torch.inference_mode():
        got = layer(x)
    assert layer._product._packed is not None
    torch.testing.assert_close(got, linear(x), atol=1e-5, rtol=1e-5)


@needs_onednn
def test_packs_in_decoding_loops_only(packs_from):
    packs_from(1)
    linear, x = frozen(in_features=576, out_features=192), torch.randn(17, 576)
    product, plain = PackedWeight(linear.weight), PackedWeight(linear.weight, pack=False)
    with torch.no_grad():
        product(x)
    assert product._packed is None
    with torch.inference_mode():
        torch.testing.assert_close(product(x)[:1], product(x[:1]), atol=1e-6, rtol=0)
        plain(x)
    assert product._packed is not None
    assert plain._packed is None


@needs_onednn
def test_few_rows_take_the_plain_product_where_it_is_faster(packs_from):
    packs_from(4)
    linear = frozen(in_features=576, out_features=192)
    product, x = PackedWeight(linear.weight, linear.bias), torch.randn(2, 8, 576)
    with torch.inference_mode():
        for few in (x[0, 0], x[:1, :3]):
            assert torch.equal(product(few), linear(few))
        assert product._packed is None
        many = product(x[:, :2])  # four rows in two dimensions
        assert product._packed is not None
    torch.testing.assert_close(many, linear(x[:, :2]), atol=1e-5, rtol=1e-5)


@needs_onednn
@pytest.mark.parametrize(
    ("slow_plain", "slow_packed", "rows"), [((), (1, 2, 4), 8), ((1, 2, 4), (), 1), ((4,), (1, 2), 4)]
)
def test_the_faster_product_is_measured(slow_plain, slow_packed, rows, monkeypatch):
    def slowed(product, counts):
        def call(x, *args):
            time.sleep(0.005 if len(x) in counts else 0)
            return product(x, *args)

        return call

    monkeypatch.setattr(F, "linear", slowed(F.linear, slow_plain))
    monkeypatch.setattr(packing, "_packed_product", slowed(packing._packed_product, slow_packed))
    assert fewest_packed_rows.__wrapped__() == rows


def test_measured_once(monkeypatch):
    first = fewest_packed_rows()
    monkeypatch.setattr(packing, "_reordered", lambda weight: pytest.fail("measured again"))
    assert fewest_packed_rows() == first in (1, 2, 4, 8)


@needs_onednn
def test_a_trained_module_is_packed_for_a_while():
    model, x = nn.Sequential(nn.Linear(24, 40), nn.SiLU(), nn.Linear(40, 3)), torch.randn(5, 24)
    expected, parameters = model(x), list(model.parameters())
    with packed_linears(model), torch.inference_mode():
        torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)
        assert isinstance(model[0], PackedLinear)
    assert [type(layer) for layer in model] == [nn.Linear, nn.SiLU, nn.Linear]
    assert all(a is b and a.requires_grad for a, b in zip(model.parameters(), parameters, strict=True))


@needs_onednn
def test_packed_in_inference_mode_serves_outside_of_it():
    linear, x = frozen(), torch.randn(8, 24)
    product = PackedWeight(linear.weight)
    with torch.inference_mode():
        product(x)
    out = product(x)
    assert not out.is_inference()
    y = torch.randn(8, 24, requires_grad=True)
    product(y).sum().backward()
    torch.testing.assert_close(y.grad, linear.weight.sum(0).expand(8, 24))


def test_other_dtypes_stay_plain():
    weight = torch.randn(5, 4, dtype=torch.bfloat16)
    x = torch.randn(4, 4, dtype=torch.bfloat16)
    assert not can_pack(weight)
    assert torch.equal(PackedWeight(weight)(x), F.linear(x, weight))


@needs_onednn
def test_replaces_nested_linears_and_restores_them():
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"a": nn.Sequential(frozen(), frozen(False, 40, 24)), "b": frozen(), "c": Special(24, 2)})
    names, x = list(model.state_dict()), torch.randn(4, 24)
    expected = model["a"](x)
    assert pack_linears(model) == 3
    assert isinstance(model["a"][0], PackedLinear)
    assert type(model["c"]) is Special
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model["a"](x), expected, atol=1e-5, rtol=1e-5)
    assert unpack_linears(model) == 3
    assert type(model["a"][0]) is nn.Linear
    assert torch.equal(model["a"](x), expected)


@needs_onednn
def test_joined_layers_give_their_outputs_behind_each_other():
    class Adapted(nn.Linear):
        pass

    first, second, x = frozen(False), frozen(False, out_features=8), torch.randn(3, 24)
    both = joined(first, PackedLinear(second))
    assert both is not None
    expected = torch.cat([first(x), second(x)], -1)
    with torch.inference_mode():
        torch.testing.assert_close(both(x), expected, atol=1e-5, rtol=1e-5)
    # an adapter computes something of its own, a bias is not part of the product
    assert joined(first, Adapted(24, 8, bias=False)) is None
    assert joined(first, frozen(True)) is None
    first.bfloat16()
    second.bfloat16()
    assert both(x.bfloat16()).dtype == torch.bfloat16  # the copy is float32 still, the layers are asked
