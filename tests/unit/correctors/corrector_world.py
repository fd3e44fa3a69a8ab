"""A tiny vocabulary, a random drafter's output, and every corrector with random weights."""

from __future__ import annotations

import torch
from torch import Tensor

from specdraft.correctors import (
    DCOCO,
    CorrectionBatch,
    Corrector,
    DominoCorrector,
    MarkovCorrector,
    SelectorCorrector,
)
from specdraft.objectives import CrossEntropy, SlotLoss
from specdraft.targets import FrozenHead
from specdraft.types import TargetSpec

VOCAB, WIDTH, SLOTS = 23, 8, 5
MAKERS = {
    "vanilla": lambda spec, **k: MarkovCorrector(spec, "vanilla", rank=6, **k),
    "gated": lambda spec, **k: MarkovCorrector(spec, "gated", rank=6, **k),
    "rnn": lambda spec, **k: MarkovCorrector(spec, "rnn", rank=6, **k),
    "domino": lambda spec, **k: DominoCorrector(spec, hidden=7, rank=6, **k),
    "selector": lambda spec, **k: SelectorCorrector(spec, candidates=4, rank=6, **k),
    "selector_projected": lambda spec, **k: SelectorCorrector(spec, candidates=4, rank=6, codebooks=False, **k),
    "dcoco": lambda spec, **k: DCOCO(spec, candidates=4, width=5, pair_width=6, hidden=9, **k),
    "dcoco_unscaled": lambda spec, **k: DCOCO(spec, 4, width=5, pair_width=6, hidden=9, rms_inputs=False, **k),
    "dcoco_first": lambda spec, **k: DCOCO(spec, 4, width=5, pair_width=6, hidden=9, score_first=True, **k),
}
NAMES = list(MAKERS)
FULL = ("vanilla", "gated", "rnn", "domino")


class World:
    """Head, embedding and spec, with a reduced draft vocabulary or without."""

    def __init__(self, reduced: bool = False, vocab: int = VOCAB, width: int = WIDTH) -> None:
        g = torch.Generator().manual_seed(1)
        self.g = g
        head = FrozenHead(torch.randn(vocab, width, generator=g), vocab_size=vocab)
        self.head = head.reduce(torch.arange(1, vocab, 2)) if reduced else head
        self.table = torch.randn(vocab, width, generator=g)
        self.rows = self.head.weight.shape[0]
        self.spec = TargetSpec("toy", width, vocab, 4, draft_vocab_size=self.rows, taps=(1,))

    def make(self, name: str, trained: bool = True, **options: object) -> Corrector:
        torch.manual_seed(3)
        corrector = MAKERS[name](self.spec, **options)
        corrector.bind(lambda ids: self.table[ids])
        if trained:
            for parameter in corrector.parameters():
                parameter.data = 0.7 * torch.randn(parameter.shape)
        return corrector

    def hidden(self, count: int, slots: int = SLOTS) -> Tensor:
        return 0.5 * torch.randn(count, slots, self.spec.hidden_size, generator=self.g)

    def batch(self, count: int = 6, slots: int = SLOTS, chunk_size: int = 7, **fields: object) -> CorrectionBatch:
        labels = torch.randint(self.spec.vocab_size, (count, slots), generator=self.g)
        anchor = torch.randint(self.spec.vocab_size, (count, 1), generator=self.g)
        rows = self.head.to_rows(labels)
        lengths = torch.randint(1, slots + 1, (count, 1), generator=self.g)
        counted = (torch.arange(slots) < lengths) & (rows >= 0)
        weights = torch.rand(count, slots, generator=self.g) * counted
        values = {
            "hidden": self.hidden(count, slots),
            "labels": labels,
            "rows": rows,
            "previous": torch.cat([anchor, labels[:, :-1]], 1),
            "counted": counted,
            "weights": weights,
            "head": self.head,
            "loss": SlotLoss(CrossEntropy(), rows.flatten(), self.head, None, self.head),
            "chunk_size": chunk_size,
        }
        return CorrectionBatch(**{**values, **fields})


def slow_scores(
    corrector: Corrector, world: World, hidden: Tensor, previous: list[int], logp: list[float]
) -> list[Tensor]:
    """Scores of every row at every slot of one block, slot by slot from the definitions; -inf off the candidates."""
    out = []
    embed = world.table
    state = None
    for k in range(len(hidden)):
        h, last = hidden[k], previous[k]
        base = h @ world.head.weight.T
        if isinstance(corrector, MarkovCorrector):
            e = corrector.predecessor.weight[last]
            if corrector.kind == "gated":
                e = torch.sigmoid(corrector.gate_proj(torch.cat([h, e]))) * e
            elif corrector.kind == "rnn":
                state = torch.zeros_like(e) if state is None else state
                u, c, o = corrector.joint_proj(torch.cat([state, e, h])).chunk(3)
                state = torch.sigmoid(u) * state + (1 - torch.sigmoid(u)) * torch.tanh(c)
                e = torch.tanh(o)
            out.append(base + corrector.output.weight @ e)
        elif isinstance(corrector, DominoCorrector):
            _, g = corrector.prefix_gru(embed[previous[: k + 1]][None])
            z = torch.nn.functional.silu(corrector.project(torch.cat([h, g[0, 0]])))
            out.append(base if k == 0 else base + corrector.output.weight @ z)
        else:
            values, rows = base.topk(corrector.candidates)
            scores = torch.full_like(base, float("-inf"))
            for b_row, u in zip(rows, values, strict=True):
                scores[b_row] = u + pair(corrector, world, hidden, k, last, logp[k], int(b_row), base)
            out.append(scores)
    return out


def pair(
    corrector: Corrector,
    world: World,
    hidden: Tensor,
    k: int,
    a: int,
    logp_a: float,
    b_row: int,
    base: Tensor,
) -> Tensor:
    b = int(world.head.to_ids(torch.tensor(b_row)))
    if isinstance(corrector, SelectorCorrector):
        gate = corrector.hidden_projection(hidden[k])
        if corrector.codebooks:
            return ((corrector.predecessor[a] * gate) * corrector.successor[b_row]).sum()
        return ((corrector.predecessor @ world.table[a] * gate) * (corrector.successor @ world.table[b])).sum()
    assert isinstance(corrector, DCOCO)
    if k == 0 and not corrector.score_first:
        return torch.tensor(0.0)
    before = hidden[max(k - 1, 0)]
    inputs = (before, hidden[k], world.table[a], world.table[b])
    h_a, h_b, e_a, e_b = ((x / x.square().mean().sqrt() if corrector.rms_inputs else x) for x in inputs)
    c_a = corrector.token_proj(e_a) + corrector.hidden_proj(h_a)
    c_b = corrector.token_proj(e_b) + corrector.hidden_proj(h_b)
    r = corrector.pair_proj(torch.cat([h_a, h_b]))
    logp_b = base[b_row] - base.logsumexp(0)
    rest = torch.stack([torch.as_tensor(logp_a), logp_b, base.max() - base[b_row]])
    x = torch.cat([c_a, c_b, c_a * c_b, r, rest])
    return corrector.mlp_out(torch.nn.functional.silu(corrector.mlp_in(x)))[0]
