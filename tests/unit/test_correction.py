"""Drafter's and corrector's loss together, and the ranks of labels."""

from __future__ import annotations

import pytest
import torch

from specdraft.correction import TeacherForced, correct, label_ranks
from specdraft.correctors import Correction, Corrector, NoCorrector
from specdraft.objectives import KLDivergence, Objective
from specdraft.targets import FrozenHead
from specdraft.types import DraftBatch, TargetSpec

VOCAB, WIDTH, BLOCK = 12, 6, 4


class Recording(Corrector):
    """Keeps its batch; its loss is the first parameter's value at every slot."""

    def __init__(self, spec, weights=(1.0, 1.0)):
        super().__init__(spec)
        self.value = torch.nn.Parameter(torch.tensor(2.0))
        self.weights, self.seen = weights, []

    def loss_weights(self, progress):
        return self.weights

    def forward(self, batch):
        self.seen.append(batch)
        predicted = torch.where(batch.counted, batch.labels, -1)
        return Correction((self.value * batch.weights).sum(), predicted, {"extra": torch.tensor(1.0)})

    def propose(self, *args):
        raise AssertionError("training never proposes")


def setting(reduced=False, first_slot=1, **options):
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCAB, (2, 12), generator=g)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :3] = mask[1, 8:] = False
    batch = DraftBatch(ids, mask, torch.zeros_like(ids), torch.arange(12).expand(2, -1))
    objective = Objective(num_anchors=5, **options)
    blocks = objective.blocks(batch, block_size=BLOCK, first_slot=first_slot, mask_token_id=0, generator=g)
    head = FrozenHead(torch.randn(VOCAB, WIDTH, generator=g), vocab_size=VOCAB)
    draft_head = head.reduce(torch.arange(0, VOCAB, 2)) if reduced else head
    hidden = torch.randn(*blocks.tokens.shape, WIDTH, generator=g, requires_grad=True)
    last = torch.randn(2, 12, WIDTH, generator=g)
    return batch, objective, blocks, hidden, TeacherForced(blocks, first_slot, draft_head, head, last, True, 1.0)


SPEC = TargetSpec("toy", WIDTH, VOCAB, 4, taps=(1,))


@pytest.mark.parametrize("first_slot", [0, 1])
@pytest.mark.parametrize("reduced", [False, True])
def test_predecessors_weights_and_sum(reduced, first_slot):
    batch, objective, blocks, hidden, given = setting(reduced, first_slot)
    corrector = Recording(SPEC, (0.5, 2.0))
    out = correct(objective, corrector, hidden, given)
    plain = objective(hidden, blocks, given.draft_head)
    torch.testing.assert_close(out.numerator, 0.5 * plain.numerator + 2.0 * 2.0 * plain.denominator)
    torch.testing.assert_close(out.denominator, plain.denominator)
    torch.testing.assert_close(out.parts["corrector_loss"], torch.tensor(2.0))
    assert out.denominators.keys() == out.parts.keys()
    assert int(out.denominators["extra"]) == int(
        (given.draft_head.to_rows(blocks.labels)[blocks.supervised] >= 0).sum()
    )
    torch.testing.assert_close(out.denominators["corrector_loss"], plain.denominator)
    seen = corrector.seen[0]
    place = 0
    for n in range(2):
        for a in range(blocks.anchors.shape[1]):
            supervised = blocks.supervised[n, a, first_slot:]
            inside = given.draft_head.to_rows(blocks.labels[n, a, first_slot:]) >= 0
            if not (supervised & inside).any():
                continue
            anchor = int(blocks.anchors[n, a])
            for k in range(int(supervised.sum())):
                assert int(seen.labels[place, k]) == int(batch.input_ids[n, anchor + 1 + k])
                assert int(seen.previous[place, k]) == int(batch.input_ids[n, anchor + k])
            assert seen.counted[place].equal(supervised & inside)
            torch.testing.assert_close(seen.hidden[place], hidden[n, a, first_slot:])
            torch.testing.assert_close(seen.weights[place], plain.weights[n, a, first_slot:])
            place += 1
    assert place == len(seen.labels)
    hit = blocks.supervised & (given.draft_head.to_rows(blocks.labels) >= 0)
    assert out.predicted_ids.equal(torch.where(hit, blocks.labels, -1))


def test_frozen_drafter_leaves_the_correctors_loss():
    _, objective, _, hidden, given = setting()
    given.train_drafter = False
    out = correct(objective, Recording(SPEC, (1.0, 0.25)), hidden.detach(), given)
    torch.testing.assert_close(out.loss, torch.tensor(2.0))
    assert out.parts["base_loss"] > 0


def test_no_corrector_is_the_objective():
    _, objective, blocks, hidden, given = setting()
    out = correct(objective, NoCorrector(SPEC), hidden, given)
    plain = objective(hidden, blocks, given.draft_head)
    torch.testing.assert_close(out.loss, plain.loss)
    assert out.predicted_ids.equal(plain.predicted_ids)


@pytest.mark.parametrize("reduced", [False, True])
def test_loss_of_the_slots_is_the_objectives(reduced):
    _, objective, blocks, hidden, given = setting(reduced, prediction=KLDivergence())
    corrector = Recording(SPEC)
    correct(objective, corrector, hidden, given)
    seen = corrector.seen[0]
    index = seen.counted.flatten().nonzero()[:, 0]
    logits = given.draft_head(seen.hidden.flatten(0, 1)[index])
    own = (seen.loss(logits, index) * seen.weights.flatten()[index]).sum()
    torch.testing.assert_close(
        own, objective(hidden, blocks, given.draft_head, given.last_hidden, given.target_head).numerator
    )


def test_nothing_supervised():
    _, objective, blocks, hidden, given = setting()
    blocks.supervised[:] = False
    out = correct(objective, Recording(SPEC), hidden, given)
    assert float(out.loss.detach()) == 0
    out.numerator.backward()


@pytest.mark.parametrize("reduced", [False, True])
def test_label_ranks(reduced):
    _, _, blocks, hidden, given = setting(reduced)
    ranks = label_ranks(hidden.detach(), blocks, given.draft_head, chunk_size=3)
    rows = given.draft_head.to_rows(blocks.labels)
    size = given.draft_head.weight.shape[0]
    for place in torch.cartesian_prod(*(torch.arange(n) for n in blocks.labels.shape)).tolist():
        n, a, b = place
        if not blocks.supervised[n, a, b] or rows[n, a, b] < 0:
            assert int(ranks[n, a, b]) == size
            continue
        order = given.draft_head(hidden[n, a, b].detach()).argsort(descending=True).tolist()
        assert int(ranks[n, a, b]) == order.index(int(rows[n, a, b]))
    # among equal logits the first row comes first, so that no two labels share a rank
    level = label_ranks(torch.zeros_like(hidden), blocks, given.draft_head, chunk_size=3)
    known = blocks.supervised & (rows >= 0)
    assert torch.equal(level[known], rows[known])
