"""Confidence-cut verification: which drafts are verified, and that the output stays the target's."""

from __future__ import annotations

import warnings

import pytest
import torch
from decoding_stubs import StubDrafter, StubTarget
from test_autoregressive import make_requests
from test_engine_sampling import Conditioned, RandomDrafter, p_value
from test_verify import enumerate_outcomes, factorised, one_hot, probability, tree

from specdraft.correctors import NoCorrector
from specdraft.decoding import (
    ConfidenceCut,
    Request,
    RunningSurvival,
    SamplingParams,
    StaticTable,
    TunedTables,
    autoregressive_decode,
    speculative_decode,
    with_threshold,
)
from specdraft.decoding.confidence import offered
from specdraft.types import Proposal


class Rating:
    """Any corrector with confidences from the token before: a fixed table, different for every predecessor."""

    def __init__(self, corrector, vocab: int) -> None:
        self.corrector = corrector
        self.table = torch.linspace(0.35, 0.95, vocab)

    def propose(self, hidden, base_logits, anchor, temperature, generator, head) -> Proposal:
        proposal = self.corrector.propose(hidden, base_logits, anchor, temperature, generator, head)
        previous = torch.cat([anchor[:, None], proposal.tokens[:, :-1]], 1)
        return Proposal(proposal.tokens, proposal.q, self.table[previous])


class Watching(StubTarget):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.widths: list[int] = []

    def forward(self, input_ids, cache, *, features=True):
        self.widths.append(input_ids.shape[1])
        return super().forward(input_ids, cache, features=features)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("concurrency", [1, 5])
def test_greedy_output_is_the_autoregressive_one(threshold, concurrency):
    target = Watching()
    corrector = with_threshold(Rating(NoCorrector(target.spec), target.vocab), threshold)
    requests = make_requests(25, seed=3)
    plain = autoregressive_decode(target, requests, concurrency=concurrency)
    target.widths.clear()
    done = speculative_decode(
        *(target, StubDrafter(target, 6, modulus=3), corrector, target.head, requests),
        mask_token_id=target.spec.mask_token_id,
        concurrency=concurrency,
    )
    assert [r.tokens for r in done.results] == [r.tokens for r in plain.results]
    for result in done.results:
        assert len(result.tokens) == 1 + sum(result.accepted) + result.rounds
        assert all(a <= d for a, d in zip(result.accepted, result.drafted, strict=True))
    if threshold == 1.0:  # nothing is certain, so nothing is verified: an autoregressive loop
        assert done.mat == 1.0
        assert max(r.drafted[0] for r in done.results if r.rounds) == 0
    if threshold == 0.6:
        assert done.mat > 1.0


def test_fewer_tokens_go_through_the_target():
    target = Watching()
    rating = Rating(NoCorrector(target.spec), target.vocab)
    widths = {}
    for threshold in (0.0, 0.5, 0.99):
        target.widths.clear()
        speculative_decode(
            *(target, StubDrafter(target, 6), with_threshold(rating, threshold), target.head, [Request([1], 40)]),
            mask_token_id=target.spec.mask_token_id,
        )
        widths[threshold] = target.widths[1:]  # behind the prefill
    assert set(widths[0.0]) == {6}
    assert 1 < sum(widths[0.5]) / len(widths[0.5]) < 6
    assert set(widths[0.99]) == {1}


def test_limit_is_the_longest_prefix_at_the_threshold():
    confidence = torch.tensor([[0.9, 0.8, 0.9, 0.1], [0.4, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.5, 1.0, 0.5, 1.0]])

    class Fixed:
        def propose(self, *args) -> Proposal:
            return Proposal(torch.zeros(4, 4, dtype=torch.int64), None, confidence)

    def limits(threshold):
        return ConfidenceCut(Fixed(), threshold).propose(*[None] * 6).limit.tolist()

    assert limits(0.5) == [3, 0, 4, 2]
    assert limits(0.0) == [4, 4, 4, 4]
    assert limits(1.0) == [0, 0, 4, 0]


def test_static_shapes_keep_all_drafts():
    """A captured graph cannot change its width: rows are only limited."""
    tokens, q = torch.arange(8).view(2, 4), torch.rand(2, 4, 3)
    room = torch.tensor([4, 1])
    whole = Proposal(tokens, q, limit=torch.tensor([2, 3]))
    kept, limit = offered(whole, room, static=True)
    assert kept is whole
    assert limit.tolist() == [2, 1]
    cut, limit = offered(whole, room, static=False)
    assert cut.tokens.tolist() == [[0, 1], [4, 5]]
    assert cut.q.equal(q[:, :2])
    assert limit.tolist() == [2, 1]
    plain = Proposal(tokens)
    assert offered(plain, room, static=False) == (plain, room)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("point_mass", [False, True])
def test_sampled_output_follows_the_target(rule, point_mass):
    params = SamplingParams(temperature=1.5)
    target = StubTarget(vocab=3, states=31)
    inner = NoCorrector(target.spec) if point_mass else Conditioned(3)
    done = speculative_decode(
        *(target, RandomDrafter(target, 4), ConfidenceCut(Rating(inner, 3), 0.4), target.head),
        [Request([1, 0], 5)] * 5000,
        mask_token_id=2,
        params=params,
        concurrency=500,
        rule=rule,
        generator=torch.Generator().manual_seed(1),
    )
    assert {d for r in done.results for d in r.drafted} >= {0, 1, 2}
    assert p_value(target, done, params) > 1e-3


@pytest.mark.parametrize("draft_law", [tree, factorised, one_hot])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_stopping_by_the_prefix_is_exactly_lossless(rule, draft_law):
    """All drafts, all outcomes: whether draft k is offered depends on the drafts before it."""
    g = torch.Generator().manual_seed(5)
    p_law, q_law = tree(3, 4, g), draft_law(3, 3, g)

    def limit(draft):
        product, length = 1.0, 0
        for k in range(3):
            product *= 0.5 + 0.25 * (draft[k - 1] if k else 1)
            if product < 0.5:
                break
            length += 1
        return length

    law, _ = enumerate_outcomes(p_law, q_law, 3, 3, rule=rule, limit=limit)
    for x, chance in law.items():
        assert chance == pytest.approx(probability(p_law, x), abs=1e-9)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_test_sees_a_limit_that_knows_the_draft(rule):
    g = torch.Generator().manual_seed(5)
    p_law, q_law = tree(3, 4, g), tree(3, 3, g)
    law, _ = enumerate_outcomes(p_law, q_law, 3, 3, rule=rule, limit=lambda draft: 3 if draft[2] == 0 else 2)
    assert max(abs(chance - probability(p_law, x)) for x, chance in law.items()) > 1e-3


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_refuses_a_threshold_that_is_no_probability(threshold):
    target = StubTarget()
    for make in (ConfidenceCut, with_threshold):
        with pytest.raises(ValueError, match=r"confidence_threshold must be in \[0, 1\], got"):
            make(NoCorrector(target.spec), threshold)


def test_refuses_a_corrector_without_confidence_before_anything_is_decoded():
    target = StubTarget()
    with pytest.raises(ValueError, match=r"NoCorrector gives no confidence, but confidence_threshold is 0.5"):
        with_threshold(NoCorrector(target.spec), 0.5)
    assert with_threshold(NoCorrector(target.spec), 0).propose is not None


class Plain:
    """Proposes as the contract of decoding asks, and says nothing of confidences."""

    def __init__(self, corrector):
        self.propose = corrector.propose


def test_refuses_proposals_without_confidence():
    target = StubTarget()
    with pytest.raises(ValueError, match="Plain gives no confidence"):
        speculative_decode(
            *(target, StubDrafter(target, 4), with_threshold(Plain(NoCorrector(target.spec)), 0.5), target.head),
            [Request([1], 5)],
            mask_token_id=target.spec.mask_token_id,
        )


def test_a_policy_that_learns_from_cut_rounds_is_told_so():
    target = StubTarget()
    tables = TunedTables(0.0, {"all": {5: [0.5] * 4}}, {5: {1: 1.0}}, {"all": {1: 5}})
    rating = Rating(NoCorrector(target.spec), target.vocab)

    def decode(policy, threshold):
        speculative_decode(
            *(target, StubDrafter(target, 5, modulus=3), with_threshold(rating, threshold), target.head),
            [Request([1, 2], 8)],
            mask_token_id=target.spec.mask_token_id,
            policy=policy,
        )

    with pytest.warns(UserWarning, match="confidence_threshold 0.5 offers the likely ones alone"):
        decode(RunningSurvival(tables), 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(RunningSurvival(tables), 0.0)
        decode(StaticTable({"all": {1: 5}}), 0.5)
