from __future__ import annotations

import pytest
import torch

from specdraft.targets import FrozenHead


@pytest.fixture
def weight():
    return torch.randn(11, 6, generator=torch.Generator().manual_seed(0))


def test_logits_with_bias_multiplier_and_softcap(weight):
    bias, hidden = torch.arange(11.0), torch.randn(2, 3, 6)
    head = FrozenHead(weight, bias=bias, softcap=5.0, multiplier=0.25)
    expected = torch.empty(2, 3, 11)
    for row in range(2):
        for slot in range(3):
            for token in range(11):
                score = 0.25 * (sum(weight[token, i] * hidden[row, slot, i] for i in range(6)) + bias[token])
                expected[row, slot, token] = 5 * torch.tanh(score / 5)
    torch.testing.assert_close(head(hidden), expected, atol=1e-5, rtol=1e-5)


def test_differentiable_in_hidden_but_not_in_the_weight(weight):
    head = FrozenHead(torch.nn.Parameter(weight))
    hidden = torch.randn(4, 6, requires_grad=True)
    head(hidden)[:, 2].sum().backward()
    torch.testing.assert_close(hidden.grad, weight[2].expand(4, 6))
    assert not head.weight.requires_grad


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_packed_equals_plain(weight, rows):
    hidden = torch.randn(rows, 6)
    with torch.inference_mode():
        torch.testing.assert_close(FrozenHead(weight)(hidden), hidden @ weight.T, atol=1e-5, rtol=1e-5)


def test_hidden_is_cast_to_the_weight(weight):
    assert FrozenHead(weight.bfloat16())(torch.randn(2, 6)).dtype == torch.bfloat16


def test_autocast_is_for_the_drafter_alone(weight):
    head, hidden = FrozenHead(weight, pack=False), torch.randn(3, 6)
    expected, drafting = head(hidden), head.for_drafting()
    assert drafting.weight is head.weight
    assert drafting(hidden).equal(expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(hidden).equal(expected)
        assert drafting(hidden).dtype == head.reduce(torch.tensor([1, 4]))(hidden).dtype == torch.bfloat16


def test_reduced_head_keeps_logits_and_maps_ids(weight):
    ids = torch.tensor([1, 4, 9])
    whole = FrozenHead(weight, bias=torch.arange(11.0), softcap=3.0, multiplier=2.0)
    head = whole.reduce(ids)
    hidden = torch.randn(5, 6)
    torch.testing.assert_close(head(hidden), whole(hidden)[:, ids])
    assert head.token_ids.tolist() == [1, 4, 9]
    assert head.vocab_size == 11
    assert head.to_ids(torch.tensor([[2, 0]])).tolist() == [[9, 1]]
    assert head.to_rows(torch.tensor([[9, 3], [0, 1]])).tolist() == [[2, -1], [-1, 0]]
    assert whole.token_ids is None
    assert whole.to_rows(ids).tolist() == whole.to_ids(ids).tolist() == [1, 4, 9]


def test_to_keeps_everything(weight):
    head = FrozenHead(weight, bias=torch.ones(11), softcap=3.0, multiplier=2.0).reduce(torch.tensor([0, 10]))
    hidden = torch.randn(2, 6)
    moved = head.to("cpu")
    torch.testing.assert_close(moved(hidden), head(hidden))
    assert moved.to_rows(torch.tensor([10])).item() == 1


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 3], "3 is followed by 3"),
        ([4, 2], "4 is followed by 2"),
        ([-1, 2], "-1..2 leave"),
        ([2, 11], "2..11 leave"),
        ([], "non-empty"),
    ],
)
def test_unusable_ids_are_refused(weight, ids, message):
    with pytest.raises(ValueError, match=message):
        FrozenHead(weight).reduce(torch.tensor(ids, dtype=torch.int64))


def test_reducing_twice_and_bad_options_are_refused(weight):
    with pytest.raises(ValueError, match="already reduced"):
        FrozenHead(weight).reduce(torch.tensor([1])).reduce(torch.tensor([0]))
    with pytest.raises(ValueError, match="softcap"):
        FrozenHead(weight, softcap=0.0)
    with pytest.raises(ValueError, match="bias"):
        FrozenHead(weight, bias=torch.ones(3))
    with pytest.raises(ValueError, match="vocab_size"):
        FrozenHead(weight, token_ids=torch.arange(11))
