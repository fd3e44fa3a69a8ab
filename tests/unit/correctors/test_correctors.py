"""Sizes, starts, walks and losses of every corrector against slow references."""

from __future__ import annotations

import pytest
import torch
from corrector_world import FULL, NAMES, pair, slow_scores
from torch.nn import functional as F

from specdraft.correctors import DCOCO, DominoCorrector, MarkovCorrector, NoCorrector, SelectorCorrector
from specdraft.correctors.lattice import follow, log_normaliser
from specdraft.objectives import SlotLoss, TotalVariation
from specdraft.targets import FrozenHead
from specdraft.types import TargetSpec

QWEN = 151_936


def size(make, hidden, vocab=QWEN):
    with torch.device("meta"):
        corrector = make(TargetSpec("qwen3", hidden, vocab, 36, head_dim=128))
    return sum(parameter.numel() for parameter in corrector.parameters())


@pytest.mark.parametrize(
    ("make", "hidden", "count"),
    [
        (DCOCO, 4096, 2_229_505),  # published
        (DCOCO, 2560, 1_443_073),  # published
        (lambda spec: DCOCO(spec, score_first=True), 2560, 1_443_073),
        (MarkovCorrector, 2560, 77_791_232),  # published: +77.8M
        (lambda spec: MarkovCorrector(spec, "gated"), 2560, 77_791_232 + (2560 + 256 + 1) * 256),
        (lambda spec: MarkovCorrector(spec, "rnn"), 2560, 77_791_232 + (2560 + 512 + 1) * 768),
        (DominoCorrector, 4096, 55_934_976),  # published: +56M
        (lambda spec: SelectorCorrector(spec, codebooks=False), 2560, 1_966_080),  # published: +2.0M
        (SelectorCorrector, 2560, 256 * (2 * QWEN + 2560)),  # tensors of the published checkpoints
        (NoCorrector, 2560, 0),
    ],
)
def test_parameter_counts(make, hidden, count):
    assert size(make, hidden) == count


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_starts_as_the_uncorrected_drafter(world, name, reduced):
    world = world(reduced)
    corrector = world.make(name, trained=False)
    hidden, anchor = world.hidden(20), torch.arange(20)
    logits = world.head(hidden)
    args = (hidden, logits, anchor, 0.0, None, world.head)
    assert corrector.propose(*args).tokens.equal(NoCorrector(world.spec).propose(*args).tokens)
    assert corrector.propose(*args).q is None


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8, 15])
def test_pointer_doubling_equals_a_loop(slots):
    g = torch.Generator().manual_seed(slots)
    start = torch.randint(6, (9,), generator=g)
    tables = torch.randint(6, (9, slots - 1, 6), generator=g)
    expected = [start]
    for t in range(slots - 1):
        expected.append(tables[:, t].gather(1, expected[-1][:, None])[:, 0])
    assert follow(start, tables).equal(torch.stack(expected, 1))


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_greedy_walk_equals_the_definition(world, name, reduced):
    world = world(reduced)
    corrector = world.make(name)
    hidden, anchor = world.hidden(12), torch.randint(world.spec.vocab_size, (12,), generator=world.g)
    logits = world.head(hidden)
    proposal = corrector.propose(hidden, logits, anchor, 0.0, None, world.head)
    assert proposal.tokens.shape == (12, 5)
    changed = 0
    for n in range(12):
        previous, logp = [int(anchor[n])], [0.0]
        for k in range(5):
            row = int(slow_scores(corrector, world, hidden[n, : k + 1], previous, logp)[k].argmax())
            previous.append(int(world.head.to_ids(torch.tensor(row))))
            logp.append(float(logits[n, k].log_softmax(-1)[row]))
        assert proposal.tokens[n].tolist() == previous[1:]
        changed += proposal.tokens[n].tolist() != world.head.to_ids(logits[n].argmax(-1)).tolist()
    assert changed > 3  # otherwise nothing was tested


@pytest.mark.parametrize("slots", [1, 2, 6])
@pytest.mark.parametrize("name", ["selector", "dcoco", "dcoco_first"])
def test_all_transitions_give_the_same_walk(world, name, slots, monkeypatch):
    world = world()
    corrector = world.make(name)
    hidden, anchor = world.hidden(20, slots), torch.arange(20)
    args = (hidden, world.head(hidden), anchor, 0.0, None, world.head)
    lazy = corrector.propose(*args).tokens
    monkeypatch.setattr(type(corrector), "greedy_walk", lambda *_: None)
    assert corrector.propose(*args).tokens.equal(lazy)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_teacher_forced_pass_equals_the_definition(world, name, reduced):
    world = world(reduced)
    corrector = world.make(name)
    batch = world.batch(hidden=world.hidden(6).requires_grad_())
    correction = corrector(batch)
    total, missed = torch.zeros(()), 0
    for n in range(6):
        logits = world.head(batch.hidden[n])
        logp = [0.0]
        for k in range(4):
            row = int(batch.rows[n, k])
            own = logits[k].log_softmax(-1)
            # a predecessor outside the draft vocabulary passes for the last candidate
            logp.append(own[row] if row >= 0 else own.topk(min(corrector.candidates, len(own)))[0][-1].detach())
        scores = slow_scores(corrector, world, batch.hidden[n], batch.previous[n].tolist(), logp)
        for k in range(5):
            if not batch.counted[n, k]:
                assert int(correction.predicted_ids[n, k]) == -1
                continue
            gold, own = int(batch.rows[n, k]), scores[k].clone()
            if own[gold] == float("-inf"):  # the label takes the last candidate's place, in the loss only
                missed += 1
                last = int(logits[k].topk(corrector.candidates)[1][-1])
                free = own.clone()
                free[last] = float("-inf")
                own = free.clone()
                a = int(batch.previous[n, k])
                own[gold] = logits[k, gold] + pair(corrector, world, batch.hidden[n], k, a, logp[k], gold, logits[k])
            else:
                free = own
            total = total + batch.weights[n, k] * F.cross_entropy(own[None], torch.tensor([gold]))
            assert int(correction.predicted_ids[n, k]) == int(world.head.to_ids(free.argmax()))
    torch.testing.assert_close(correction.numerator, total, rtol=1e-4, atol=1e-5)
    leaves = [batch.hidden, *corrector.parameters()]
    got = torch.autograd.grad(correction.numerator, leaves, allow_unused=True)
    wanted = torch.autograd.grad(total, leaves, allow_unused=True)
    for one, other in zip(got, wanted, strict=True):
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(torch.zeros_like(other) if one is None else one, other, rtol=1e-3, atol=1e-5)
    if name not in FULL:
        share = float(correction.diagnostics["label_missed"])
        assert share == pytest.approx(missed / int(batch.counted.sum()))
        assert share > 0


@pytest.mark.parametrize("name", FULL)
def test_target_distribution_reaches_the_corrected_logits(world, name):
    world = world(True)
    corrector = world.make(name)
    whole = torch.randn(world.spec.vocab_size, world.spec.hidden_size, generator=world.g)
    target_head, target_hidden = FrozenHead(whole), torch.randn(30, world.spec.hidden_size, generator=world.g)
    batch = world.batch()
    batch.loss = SlotLoss(TotalVariation(), batch.rows.flatten(), world.head, target_hidden, target_head)
    value = corrector(batch).numerator
    expected = torch.zeros(())
    for n in range(6):
        scores = slow_scores(corrector, world, batch.hidden[n], batch.previous[n].tolist(), [0.0] * 5)
        for k in range(5):
            p = target_head(target_hidden[5 * n + k]).softmax(-1)[world.head.token_ids]
            q = scores[k].softmax(-1)
            expected = expected + batch.weights[n, k] * (1 - torch.minimum(p, q).sum())
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    assert corrector.output.weight.requires_grad
    value.backward()
    assert corrector.output.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
def test_one_step_lowers_the_loss(world, name):
    world = world()
    corrector = world.make(name, trained=False)
    batch = world.batch(count=12)
    optimizer = torch.optim.SGD(corrector.parameters(), lr=0.01)
    losses = []
    for _ in range(3):  # the parts behind a zero-initialised layer learn from the second step on
        loss = corrector(batch).numerator
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_learn_gives_zero_gradients(world, name):
    world = world()
    corrector = world.make(name)
    nothing = torch.zeros(1, 5)
    batch = world.batch(count=1, counted=nothing.bool(), weights=nothing, rows=torch.full((1, 5), -1))
    correction = corrector(batch)
    correction.numerator.backward()
    assert float(correction.numerator.detach()) == 0
    assert (correction.predicted_ids == -1).all()
    assert all(p.grad is not None and not p.grad.any() for p in corrector.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_logits_and_float64_weights(world, name):
    world = world()
    hidden, anchor = world.hidden(4), torch.arange(4)
    logits = world.head(hidden)
    for corrector, given in ((world.make(name), logits.bfloat16()), (world.make(name).double(), logits.double())):
        tokens = corrector.propose(hidden.to(given.dtype), given, anchor, 0.0, None, world.head).tokens
        assert tokens.shape == (4, 5)


def test_log_normaliser():
    logits = 20 * torch.randn(3, 4, 50)
    torch.testing.assert_close(log_normaliser(logits), logits.logsumexp(-1))
    torch.testing.assert_close(log_normaliser(logits.bfloat16()), logits.bfloat16().float().logsumexp(-1))


def test_domino_curriculum(world):
    corrector = world().make("domino", lambda_start=0.8, lambda_ratio=0.5)
    for progress, base in ((0.0, 0.8), (0.25, 0.4), (0.5, 0.0), (1.0, 0.0)):
        assert corrector.loss_weights(progress) == pytest.approx((base, 1 - base))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda spec: DCOCO(spec, candidates=24), r"candidates 24 must be in 2\.\.23"),
        (lambda spec: SelectorCorrector(spec, candidates=1), "candidates 1"),
        (lambda spec: DCOCO(spec, width=0), "width must be at least 1, got 0"),
        (lambda spec: DCOCO(spec, 4, weight=0.0), "weight must be positive"),
        (lambda spec: MarkovCorrector(spec, "cubic"), "'cubic' is unknown"),
        (lambda spec: MarkovCorrector(spec, rank=0), "rank must be at least 1"),
        (lambda spec: DominoCorrector(spec, lambda_start=2.0), "lambda_start"),
    ],
)
def test_refuses(world, make, match):
    with pytest.raises(ValueError, match=match):
        make(world().spec)


def test_needs_an_embedding_and_a_head_of_its_size(world):
    world_ = world()
    corrector = DominoCorrector(world_.spec, 4, 4)
    with pytest.raises(RuntimeError, match="bind"):
        corrector(world_.batch())
    markov = world_.make("vanilla")
    with pytest.raises(ValueError, match="made for 23 rows, the head has 11"):
        markov(world(True).batch())
