"""A target and drafters small enough to be worked out by hand.

The target is an automaton over the whole prefix: state is (5 state + 3 token + position + 1) mod M, the next token's
logits are a row of a random table. States are kept in the key/value cache, so that a wrong length, a crossed row or a
stale entry changes every later token.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from specdraft.cache import KeyValueCache
from specdraft.types import TargetOutput, TargetSpec


def step(state: Tensor, token: Tensor, position: Tensor, states: int) -> Tensor:
    return (5 * state + 3 * token + position + 1) % states


class StubHead:
    def __init__(self, weight: Tensor, token_ids: Tensor | None = None) -> None:
        self.weight = weight if token_ids is None else weight[token_ids]
        self.token_ids = token_ids
        self.rows_seen = 0

    def __call__(self, hidden: Tensor) -> Tensor:
        self.rows_seen += hidden[..., 0].numel()
        return hidden @ self.weight.T

    def to_ids(self, rows: Tensor) -> Tensor:
        return rows if self.token_ids is None else self.token_ids[rows]

    def to_rows(self, ids: Tensor) -> Tensor:
        raise AssertionError("decoding never asks for the rows of target ids")


class StubTarget:
    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, vocab: int = 11, states: int = 101, seed: int = 0, positions: int = 4096) -> None:
        self.states, self.vocab = states, vocab
        self.table = 2 * torch.randn(states, vocab, generator=torch.Generator().manual_seed(seed))
        self.spec = TargetSpec("stub", states + vocab, vocab, 4, max_position_embeddings=positions, taps=(1,))
        # hidden = [one-hot state ; free logits]: drafters write the free part
        self.head = StubHead(torch.cat([self.table.T, torch.eye(vocab)], 1))

    def embed(self, ids: Tensor) -> Tensor:
        return F.pad(F.one_hot(ids, self.vocab).float(), (self.states, 0))

    def new_cache(self, rows: int, capacity: int) -> KeyValueCache:
        return KeyValueCache(1, rows, capacity, 1, 1)

    def forward(self, input_ids: Tensor, cache: KeyValueCache, *, features: bool = True) -> TargetOutput:
        count = input_ids.shape[1]
        state = last_state(cache)
        states = []
        for j in range(count):
            state = step(state, input_ids[:, j], cache.lengths + j, self.states)
            states.append(state)
        walk = torch.stack(states, 1)
        cache.write(0, walk[:, None, :, None].float(), walk[:, None, :, None].float())
        hidden = F.pad(F.one_hot(walk, self.states).float(), (0, self.vocab))
        return TargetOutput(hidden, hidden if features else None)

    def logits_after(self, tokens: list[int]) -> Tensor:
        state = torch.tensor(0)
        for position, token in enumerate(tokens):
            state = step(state, torch.tensor(token), torch.tensor(position), self.states)
        return self.table[state]

    def greedy(self, prompt: list[int], limit: int, stops: tuple[int, ...] = ()) -> list[int]:
        """Plain loop: the reference of greedy decoding."""
        out: list[int] = []
        while len(out) < limit and not (out and out[-1] in stops):
            out.append(int(self.logits_after(prompt + out).argmax()))
        return out


def last_state(cache: KeyValueCache) -> Tensor:
    index = (cache.lengths - 1).clamp_min(0)
    stored = cache.keys[0][torch.arange(cache.rows), 0, index, 0].long()
    return torch.where(cache.lengths > 0, stored, 0)


class StubDrafter:
    """Knows the target; slot by slot ``right(state, k)`` decides whether draft k is the greedy token or another one."""

    def __init__(self, target: StubTarget, block_size: int, sample_from_anchor: bool = False, modulus: int = 0) -> None:
        self.target, self.spec = target, target.spec
        self.block_size, self.sample_from_anchor = block_size, sample_from_anchor
        self.modulus = modulus
        self.blocks: list[int] = []

    def new_cache(self, rows: int, capacity: int) -> KeyValueCache:
        return KeyValueCache(1, rows, capacity, 1, 1)

    def extend(self, features: Tensor, cache: KeyValueCache) -> None:
        states = features[..., : self.target.states].argmax(-1)[:, None, :, None].float()
        cache.write(0, states, states)

    def right(self, state: Tensor, k: int) -> Tensor:
        """modulus 0: always, 1: never, m: unless the anchor's state + k is a multiple of m."""
        if self.modulus == 0:
            return torch.ones_like(state, dtype=torch.bool)
        return (state + k) % self.modulus != 0

    def draft(self, embeds: Tensor, cache: KeyValueCache) -> Tensor:
        tokens = embeds[..., self.target.states :].argmax(-1)
        self.blocks.append(tokens.shape[1])
        assert bool((tokens[:, 1:] == self.spec.mask_token_id).all())
        start = step(last_state(cache), tokens[:, 0], cache.lengths, self.target.states)
        logits = self.slot_logits(start, cache.lengths, tokens.shape[1] - (0 if self.sample_from_anchor else 1))
        if not self.sample_from_anchor:  # the anchor's slot predicts nothing: poison it
            logits = torch.cat([torch.full_like(logits[:, :1], float("nan")), logits], 1)
        return F.pad(logits, (self.target.states, 0))

    def slot_logits(self, start: Tensor, positions: Tensor, count: int) -> Tensor:
        state, out = start, []
        for k in range(count):
            token = self.target.table[state].argmax(-1)
            choice = torch.where(self.right(start, k), token, (token + 1) % self.target.vocab)
            out.append(F.one_hot(choice, self.target.vocab).float())
            state = step(state, token, positions + 1 + k, self.target.states)
        return torch.stack(out, 1)
