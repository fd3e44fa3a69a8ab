"""Sampled decoding with drafts: the whole loop against the exact law of three tokens."""

from __future__ import annotations

import itertools

import pytest
import torch
from decoding_stubs import StubDrafter, StubTarget
from torch import Tensor

from specdraft.correctors import NoCorrector
from specdraft.decoding import Request, SamplingParams, speculative_decode, to_probs
from specdraft.types import Proposal

COUNT = 5000


class RandomDrafter(StubDrafter):
    """Logits of a slot depend on the anchor's state and the slot alone: a factorised law, far from the target's."""

    def slot_logits(self, start: Tensor, positions: Tensor, count: int) -> Tensor:
        table = torch.randn(self.target.states, 8, self.target.vocab, generator=torch.Generator().manual_seed(5))
        return table[start, :count]


class Conditioned:
    """A sampled walk: every draft is drawn given the one before it."""

    def __init__(self, vocab: int) -> None:
        self.pairs = 1.5 * torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(6))

    def propose(self, hidden, base_logits, anchor, temperature, generator, head) -> Proposal:
        tokens, laws, last = [], [], anchor
        for k in range(base_logits.shape[1]):
            laws.append(torch.softmax((base_logits[:, k] + self.pairs[last]) / temperature, -1))
            last = torch.multinomial(laws[-1], 1, generator=generator)[:, 0]
            tokens.append(last)
        return Proposal(torch.stack(tokens, 1), torch.stack(laws, 1))


class Lying:
    """Greedy draft that claims to have been sampled: not lossless, which the test must see."""

    def propose(self, hidden, base_logits, anchor, temperature, generator, head) -> Proposal:
        return Proposal(base_logits.argmax(-1), torch.softmax(base_logits / temperature, -1))


def run(corrector, params, rule="token", seed=0, limit=5, count=COUNT):
    target = StubTarget(vocab=3, states=31)
    done = speculative_decode(
        target,
        RandomDrafter(target, 4),
        corrector(target),
        target.head,
        [Request([1, 0], limit)] * count,
        mask_token_id=2,
        params=params,
        concurrency=500,
        rule=rule,
        generator=torch.Generator().manual_seed(seed),
    )
    return target, done


def p_value(target, done, params, length=3):
    """Chi-square of the first tokens against their exact law."""
    cells = {}
    for x in itertools.product(range(3), repeat=length):
        chance = 1.0
        for k in range(length):
            chance *= float(to_probs(target.logits_after([1, 0, *x[:k]]), params)[x[k]])
        cells[x] = chance
    observed = dict.fromkeys(cells, 0)
    for result in done.results:
        observed[tuple(result.tokens[:length])] += 1
    total = len(done.results)
    assert all(observed[x] == 0 for x, chance in cells.items() if chance == 0)
    possible = {x: chance for x, chance in cells.items() if chance > 0}
    chi = sum((observed[x] - total * chance) ** 2 / (total * chance) for x, chance in possible.items())
    return float(torch.special.gammaincc(torch.tensor((len(possible) - 1) / 2), torch.tensor(chi / 2)))


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    "corrector",
    [
        lambda target: NoCorrector(target.spec),
        lambda target: NoCorrector(target.spec, sample=True),
        lambda target: Conditioned(3),
    ],
    ids=["point_mass", "factorised", "conditioned"],
)
def test_output_follows_the_target(corrector, rule):
    params = SamplingParams(temperature=1.5)
    target, done = run(corrector, params, rule)
    assert p_value(target, done, params) > 1e-3
    assert 1.1 < done.mat < 3.5  # both outcomes of verification are exercised


def test_filters_change_the_law_before_verification():
    params = SamplingParams(temperature=1.5, top_k=2, top_p=0.9)
    target, done = run(lambda target: NoCorrector(target.spec, sample=True), params)
    assert p_value(target, done, params) > 1e-3


def test_the_test_sees_a_lossy_draft():
    params = SamplingParams(temperature=1.5)
    target, done = run(lambda target: Lying(), params)
    assert p_value(target, done, params) < 1e-6


def test_length_limit_does_not_bend_the_law():
    """max_new_tokens 3: the last round may accept one draft at most, its next token comes from p."""
    params = SamplingParams(temperature=1.5)
    for rule in ("token", "block"):
        target, done = run(lambda target: Conditioned(3), params, rule, seed=3, limit=3)
        assert {len(result.tokens) for result in done.results} == {3}
        assert p_value(target, done, params) > 1e-3


def test_block_rule_accepts_more():
    params = SamplingParams(temperature=1.5)
    mats = [
        run(lambda target: Conditioned(3), params, rule, limit=20, count=2000)[1].mat for rule in ("token", "block")
    ]
    assert mats[1] > mats[0]


def test_seed_decides():
    params = SamplingParams(temperature=1.0)
    outputs = [
        [r.tokens for r in run(lambda target: Conditioned(3), params, seed=seed, count=50)[1].results]
        for seed in (1, 1, 2)
    ]
    assert outputs[0] == outputs[1] != outputs[2]


def test_one_hot_target_equals_greedy():
    """A tiny temperature sends the sampled path to the greedy output."""
    target = StubTarget()
    done = speculative_decode(
        target,
        StubDrafter(target, 4, modulus=2),
        NoCorrector(target.spec),
        target.head,
        [Request([1, 2], 20)],
        mask_token_id=10,
        params=SamplingParams(temperature=1e-4),
    )
    assert done.results[0].tokens == target.greedy([1, 2], 20)
