"""Sampled walks: q is the law that was sampled, and the engine stays lossless with every corrector."""

from __future__ import annotations

import itertools

import pytest
import torch
from corrector_world import MAKERS, NAMES, World
from decoding_stubs import StubDrafter, StubTarget

from specdraft.correctors import NoCorrector
from specdraft.decoding import Request, SamplingParams, speculative_decode, to_probs, with_threshold


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_q_is_the_law_that_was_sampled(name, reduced):
    """Every path of three slots occurs as often as the product of the q that it came with says."""
    world = World(reduced, vocab=13 if reduced else 6)
    corrector = world.make(name, sample=True)
    count = 30_000
    hidden = world.hidden(1, 3)
    args = (hidden.expand(count, -1, -1), world.head(hidden).expand(count, -1, -1), torch.full((count,), 2), 3.0)
    proposal = corrector.propose(*args, torch.Generator().manual_seed(0), world.head)
    assert proposal.q.shape == (count, 3, world.spec.vocab_size)
    torch.testing.assert_close(proposal.q.sum(-1), torch.ones(count, 3))
    own = proposal.q.gather(-1, proposal.tokens[..., None])[..., 0].prod(-1)
    assert (own > 0).all()
    paths, where = proposal.tokens.unique(dim=0, return_inverse=True)
    seen = torch.bincount(where, minlength=len(paths)) / count
    claimed = torch.zeros(len(paths)).index_copy(0, where, own)
    # one path always comes with one q
    torch.testing.assert_close(claimed[where], own, rtol=1e-3, atol=1e-6)
    assert float(claimed.sum()) > 0.98
    assert float((seen - claimed).abs().sum()) / 2 < 0.05
    assert 1 - float((claimed**2).sum()) > 0.3  # otherwise nothing was tested


def corrector_for(target: StubTarget, name: str, **options: object):
    torch.manual_seed(4)
    if name == "none":
        return NoCorrector(target.spec)
    makers = MAKERS
    corrector = makers[name](target.spec, **options)
    corrector.bind(target.embed)
    for parameter in corrector.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape)
    return corrector


class RandomDrafter(StubDrafter):
    """Logits of a slot depend on the anchor's state and the slot alone: far from the target's."""

    def slot_logits(self, start, positions, count):
        table = torch.randn(self.target.states, 8, self.target.vocab, generator=torch.Generator().manual_seed(5))
        return table[start, :count]


def greedy(name: str, sample_from_anchor: bool, threshold: float = 0.0, **options: object):
    target = StubTarget()
    requests = [Request([1 + i, 2, 3 * i % 7], 18) for i in range(6)]
    done = speculative_decode(
        target,
        RandomDrafter(target, 5, sample_from_anchor),
        with_threshold(corrector_for(target, name, **options), threshold),
        target.head,
        requests,
        mask_token_id=target.spec.mask_token_id,
        concurrency=4,
    )
    assert [r.tokens for r in done.results] == [target.greedy(r.prompt_ids, 18) for r in requests]
    return done


@pytest.mark.parametrize("sample_from_anchor", [False, True])
@pytest.mark.parametrize("name", ["none", *NAMES])
def test_greedy_decoding_is_lossless(name, sample_from_anchor):
    greedy(name, sample_from_anchor)


@pytest.mark.parametrize("threshold", [0.2, 0.4])
@pytest.mark.parametrize("name", ["vanilla", "gated", "rnn"])
def test_greedy_decoding_cut_by_confidence_is_lossless(name, threshold):
    done = greedy(name, False, threshold, confidence=True)
    offered = [count for result in done.results for count in result.drafted]
    assert min(offered) < 4
    assert max(offered) > 0


def sampled(name: str, rule: str, threshold: float = 0.0, **options: object):
    """Decode and compare the first three tokens with the target's law."""
    count, params = 4000, SamplingParams(temperature=1.5)
    target = StubTarget(vocab=4, states=31)
    done = speculative_decode(
        target,
        RandomDrafter(target, 4),
        with_threshold(corrector_for(target, name, **options), threshold),
        target.head,
        [Request([1], 4)] * count,
        mask_token_id=3,
        params=params,
        concurrency=500,
        rule=rule,
        generator=torch.Generator().manual_seed(7),
    )
    counts = torch.zeros(4, 4, 4)
    for result in done.results:
        counts[tuple(result.tokens[:3])] += 1
    law = torch.zeros(4, 4, 4)
    for path in itertools.product(range(4), repeat=3):
        chance = 1.0
        for i, token in enumerate(path):
            chance *= float(to_probs(target.logits_after([1, *path[:i]]), params)[token])
        law[path] = chance
    keep = law * count > 5
    expected = torch.cat([law[keep], law[~keep].sum()[None]]) * count
    seen = torch.cat([counts[keep], counts[~keep].sum()[None]])
    degrees = len(expected) - 1
    chi = float(((seen - expected) ** 2 / expected.clamp(min=1e-9)).sum())
    p_value = 1 - float(torch.special.gammainc(torch.tensor(degrees / 2), torch.tensor(chi / 2)))
    assert p_value > 1e-3
    return done


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_sampled_decoding_is_lossless(name, sample, rule):
    sampled(name, rule, sample=sample)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("name", ["vanilla", "gated", "rnn"])
def test_sampled_decoding_cut_by_confidence_is_lossless(name, sample, rule):
    done = sampled(name, rule, 0.4, sample=sample, confidence=True)
    assert len({count for result in done.results for count in result.drafted}) > 1
