"""Losslessness by exact enumeration: every draft, every pattern of passing positions, every next token."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from specdraft.decoding.verify import decide, thresholds, verify, verify_greedy


def tree(vocab: int, depth: int, g: torch.Generator, sharp: float = 1.5) -> dict[tuple[int, ...], Tensor]:
    """A random law over sequences: one distribution per prefix, so that nothing factorises."""
    prefixes = (x for k in range(depth) for x in itertools.product(range(vocab), repeat=k))
    return {x: torch.softmax(sharp * torch.randn(vocab, generator=g, dtype=torch.float64), 0) for x in prefixes}


def factorised(vocab: int, depth: int, g: torch.Generator) -> dict[tuple[int, ...], Tensor]:
    slots = [torch.softmax(1.5 * torch.randn(vocab, generator=g, dtype=torch.float64), 0) for _ in range(depth)]
    return {x: slots[k] for k in range(depth) for x in itertools.product(range(vocab), repeat=k)}


def one_hot(vocab: int, depth: int, g: torch.Generator) -> dict[tuple[int, ...], Tensor]:
    path = torch.randint(vocab, (depth,), generator=g)
    return {
        x: torch.eye(vocab, dtype=torch.float64)[path[k]]
        for k in range(depth)
        for x in itertools.product(range(vocab), repeat=k)
    }


def along(law: dict[tuple[int, ...], Tensor], draft: tuple[int, ...], length: int) -> Tensor:
    return torch.stack([law[draft[:k]] for k in range(length)])


def probability(law: dict[tuple[int, ...], Tensor], draft: tuple[int, ...]) -> float:
    return float(torch.stack([law[draft[:k]][draft[k]] for k in range(len(draft))]).prod())


def enumerate_outcomes(p_law, q_law, vocab, depth, *, rule, point_mass=False, limit=None):
    """Law of the first ``depth + 1`` emitted tokens, completed by the target itself, and the mean accepted length.

    ``limit`` may be a function of the draft.
    """
    drafts = [d for d in itertools.product(range(vocab), repeat=depth) if probability(q_law, d) > 0]
    patterns = list(itertools.product([True, False], repeat=depth))
    cases = [(d, pattern) for d in drafts for pattern in patterns]
    p = torch.stack([along(p_law, d, depth + 1) for d, _ in cases])
    q = None if point_mass else torch.stack([along(q_law, d, depth) for d, _ in cases])
    tokens = torch.tensor([d for d, _ in cases])
    if callable(limit):
        limits = torch.tensor([limit(d) for d, _ in cases])
    else:
        limits = torch.full((len(cases),), depth if limit is None else limit)
    level, _ = thresholds(p, tokens, q, rule=rule, limit=limits)
    assert bool(((level >= 0) & (level <= 1)).all())
    passed = torch.tensor([pattern for _, pattern in cases])
    # a variate on the wanted side of its threshold; the side's length is its probability
    uniforms = torch.where(passed, level / 2, (1 + level) / 2)
    weight = torch.where(passed, level, 1 - level).prod(-1)
    accepted, law = decide(p, tokens, q, uniforms, rule=rule, limit=None if limit is None else limits)
    law = law / law.sum(-1, keepdim=True)
    out: dict[tuple[int, ...], float] = dict.fromkeys(itertools.product(range(vocab), repeat=depth + 1), 0.0)
    mean = 0.0
    for row, (draft, _) in enumerate(cases):
        mass = probability(q_law, draft) * float(weight[row])
        if mass == 0:
            continue
        length = int(accepted[row])
        mean += mass * length
        for token in range(vocab):
            head = (*draft[:length], token)
            chance = mass * float(law[row, token])
            for tail in itertools.product(range(vocab), repeat=depth - length):
                rest = 1.0
                for k in range(len(tail)):
                    rest *= float(p_law[head + tail[:k]][tail[k]])
                out[head + tail] += chance * rest
    return out, mean


def bound(p_law, q_law, vocab, depth):
    """No lossless chain scheme accepts more: sum_k sum_x min(p(x_1:k), q(x_1:k))."""
    return sum(
        min(probability(p_law, x), probability(q_law, x))
        for k in range(1, depth + 1)
        for x in itertools.product(range(vocab), repeat=k)
    )


@pytest.mark.parametrize("draft_law", [tree, factorised, one_hot])
@pytest.mark.parametrize(("vocab", "depth"), [(2, 3), (3, 1), (3, 2), (3, 3), (4, 2), (4, 3)])
def test_output_law_is_target_law(vocab, depth, draft_law):
    g = torch.Generator().manual_seed(vocab * 10 + depth)
    for _ in range(2):
        p_law, q_law = tree(vocab, depth + 1, g), draft_law(vocab, depth, g)
        means = {}
        for rule in ("token", "block"):
            law, means[rule] = enumerate_outcomes(p_law, q_law, vocab, depth, rule=rule)
            for x, chance in law.items():
                assert chance == pytest.approx(probability(p_law, x), abs=1e-9)
        assert means["block"] >= means["token"] - 1e-12
        assert means["block"] <= bound(p_law, q_law, vocab, depth) + 1e-12
        if draft_law is one_hot:
            assert means["block"] == pytest.approx(means["token"], abs=1e-12)
            for rule in ("token", "block"):
                law, mean = enumerate_outcomes(p_law, q_law, vocab, depth, rule=rule, point_mass=True)
                assert mean == pytest.approx(means["token"], abs=1e-12)
                for x, chance in law.items():
                    assert chance == pytest.approx(probability(p_law, x), abs=1e-9)


def test_block_rule_gains():
    g = torch.Generator().manual_seed(7)
    p_law, q_law = tree(3, 4, g), factorised(3, 3, g)
    token = enumerate_outcomes(p_law, q_law, 3, 3, rule="token")[1]
    block = enumerate_outcomes(p_law, q_law, 3, 3, rule="block")[1]
    assert block > 1.01 * token


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("point_mass", [True, False])
def test_limit_stays_lossless(limit, rule, point_mass):
    g = torch.Generator().manual_seed(limit)
    p_law, q_law = tree(3, 4, g), (one_hot if point_mass else tree)(3, 3, g)
    law, mean = enumerate_outcomes(p_law, q_law, 3, 3, rule=rule, point_mass=point_mass, limit=limit)
    for x, chance in law.items():
        assert chance == pytest.approx(probability(p_law, x), abs=1e-9)
    assert mean <= limit


@pytest.mark.parametrize("rule", ["token", "block"])
def test_equal_laws_accept_everything(rule):
    g = torch.Generator().manual_seed(3)
    law = factorised(4, 4, g)
    p = along(law, (0, 1, 2), 4)[None].repeat(500, 1, 1).float()
    tokens = torch.stack([torch.multinomial(p[0, k], 500, replacement=True, generator=g) for k in range(3)], 1)
    verdict = verify(p, tokens, p[:, :3].clone(), rule=rule, generator=g)
    assert verdict.accepted.tolist() == [3] * 500


def test_zero_mass_falls_back_to_the_target():
    p = torch.tensor([[[0.25, 0.75], [1.0, 0.0]]])
    accepted, law = decide(p, torch.tensor([[0]]), p[:, :1], torch.tensor([[1.0]]))  # 1.0 never passes
    assert accepted.tolist() == [0]
    assert law.tolist() == [[0.25, 0.75]]


def test_token_outside_the_target_is_rejected():
    p = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    for q in (None, torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])):
        verdict = verify(p, torch.tensor([[0]]), q)
        assert (verdict.accepted.tolist(), verdict.next_token.tolist()) == ([0], [1])


@pytest.mark.parametrize("rule", ["token", "block"])
def test_sampled_calls_follow_the_law(rule):
    """The public call with its own random numbers, 40,000 drafts, against the target's law of three tokens."""
    g = torch.Generator().manual_seed(11)
    p_law, q_law, count = tree(3, 3, g), tree(3, 2, g), 40000
    drafts = list(itertools.product(range(3), repeat=2))
    chosen = torch.multinomial(torch.tensor([probability(q_law, d) for d in drafts]), count, True, generator=g)
    p = torch.stack([along(p_law, d, 3) for d in drafts])[chosen].float()
    q = torch.stack([along(q_law, d, 2) for d in drafts])[chosen].float()
    tokens = torch.tensor(drafts)[chosen]
    verdict = verify(p, tokens, q, rule=rule, generator=g)
    observed = dict.fromkeys(itertools.product(range(3), repeat=3), 0)
    for draft, length, token in zip(tokens.tolist(), *(x.tolist() for x in vars(verdict).values()), strict=True):
        emitted = [*draft[:length], token]
        while len(emitted) < 3:
            emitted.append(int(torch.multinomial(p_law[tuple(emitted)], 1, generator=g)))
        observed[tuple(emitted)] += 1
    chi = sum((n - count * probability(p_law, x)) ** 2 / (count * probability(p_law, x)) for x, n in observed.items())
    assert chi < 54.1  # 0.1% point of chi-square with 26 degrees of freedom


def test_greedy_is_the_limit_of_one_hot():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 5, 4, generator=g)
    tokens = torch.where(torch.rand(300, 4, generator=g) < 0.7, logits[:, :4].argmax(-1), 1)
    p = torch.nn.functional.one_hot(logits.argmax(-1), 4).float()
    limit = torch.randint(0, 5, (300,), generator=g)
    for bound_ in (None, limit):
        fast = verify_greedy(logits, tokens, bound_)
        slow = verify(p, tokens, limit=bound_)
        assert fast.accepted.equal(slow.accepted)
        assert fast.next_token.equal(slow.next_token)
    assert set(fast.accepted.tolist()) == {0, 1, 2, 3, 4}
    exact = verify_greedy(torch.tensor([[5, 6, 7], [5, 6, 7]]), torch.tensor([[5, 6], [4, 6]]))
    assert (exact.accepted.tolist(), exact.next_token.tolist()) == ([2, 0], [7, 5])


@pytest.mark.parametrize(
    ("p", "q", "rule", "match"),
    [
        ((2, 3, 4), None, "token", "K \\+ 1"),
        ((2, 4, 4), (2, 4, 4), "token", r"q \[2, 4, 4\]"),
        ((2, 4, 4), None, "tree", "'tree' is unknown"),
    ],
)
def test_refuses(p, q, rule, match):
    with pytest.raises(ValueError, match=match):
        verify(torch.ones(p), torch.zeros(2, 3, dtype=torch.long), None if q is None else torch.ones(q), rule=rule)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_rare_drafts_stay_rare_under_another_default_dtype(rule) -> None:
    """Precision bf16-true makes bfloat16 the default: 256 uniforms, of which one lies below any probability."""
    p = torch.tensor([0.0005, 0.9995]).expand(20_000, 2, 2).contiguous()
    tokens = torch.zeros(20_000, 1, dtype=torch.int64)
    torch.set_default_dtype(torch.bfloat16)
    try:
        verdict = verify(p, tokens, None, rule=rule, generator=torch.Generator().manual_seed(0))
    finally:
        torch.set_default_dtype(torch.float32)
    assert float(verdict.accepted.float().mean()) < 0.0015
