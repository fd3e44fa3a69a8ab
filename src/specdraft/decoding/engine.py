"""The speculative loop: a batch of requests with ragged progress."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from specdraft.cache import KeyValueCache
from specdraft.decoding.prefill import prefill
from specdraft.decoding.requests import DecodeResult, OnFinish, Request
from specdraft.decoding.sampling import SamplingParams, to_probs
from specdraft.decoding.schedule import Schedule
from specdraft.decoding.timing import RoundClock
from specdraft.decoding.verify import Rule, verify, verify_greedy
from specdraft.types import DecodingCorrector, DecodingDrafter, DecodingTarget, Head, Proposal, Verdict


@torch.inference_mode()
def speculative_decode(
    target: DecodingTarget,
    drafter: DecodingDrafter,
    corrector: DecodingCorrector,
    head: Head,
    requests: list[Request],
    *,
    mask_token_id: int,
    params: SamplingParams | None = None,
    concurrency: int = 1,
    block_size: int | None = None,
    rule: Rule = "token",
    generator: torch.Generator | None = None,
    on_finish: OnFinish | None = None,
) -> DecodeResult:
    """Decode with drafts, ``concurrency`` requests at a time; a row that ends is refilled from the queue.

    Lossless: greedy output equals the autoregressive one up to numerics, sampled output follows the same law. Modules
    are used as they are, so put them into evaluation mode first.

    Args:
        target: The target.
        drafter: Drafts a block from the target's features.
        corrector: Chooses the drafts.
        head: The draft head, maybe of a reduced vocabulary.
        requests: What to decode.
        mask_token_id: Id that fills the undrafted slots, the one the drafter was trained with.
        params: How tokens are drawn from the target (default: greedy).
        concurrency: Rows of the batch.
        block_size: Input slots of a block, at most the drafter's own (default: that).
        rule: How sampled drafts are verified, ``token`` or ``block``.
        generator: Source of randomness, on the target's device.
        on_finish: Called with index and result whenever a request ends.

    Returns:
        Results in the order of the requests, with the time of each part.

    Raises:
        ValueError: If a request cannot be decoded, or the block does not fit the drafter.
    """
    loop = _Loop(
        target, drafter, corrector, head, mask_token_id, params or SamplingParams(), block_size, rule, generator
    )
    schedule = Schedule(requests, target.spec, concurrency, on_finish)
    done = DecodeResult(schedule.results)
    if not requests:
        return done
    caches = loop.new_caches(len(schedule.rows), schedule.longest + loop.drafts + 1)
    clock = RoundClock(target.device)
    began = perf_counter()
    changed = True
    while True:
        if changed:
            start = perf_counter()
            schedule.refill(lambda places, prompts: loop.load(caches, places, prompts))
            done.prefill_seconds += perf_counter() - start
            if schedule.has_gaps:
                kept = schedule.compact()
                if not kept:
                    break
                for cache in caches:
                    cache.select(torch.tensor(kept, device=target.device))
            state = loop.state(schedule)
        packet = loop.round(state, caches, clock).tolist()  # the only synchronisation of a round
        clock.read()
        done.steps += 1
        lengths = [row.length + answer[-2] for row, answer in zip(schedule.live, packet, strict=True)]
        for cache in caches:
            cache.advance(state.kept, extent=max(lengths))
        changed = False
        for place, (*tokens, kept_count, accepted) in enumerate(packet):
            row = schedule.live_row(place)
            # drafts behind a stop token inside the accepted prefix, or past the limit, had no chance to count
            drafted = kept_count - 1 if kept_count <= accepted else min(loop.drafts, row.remaining - 1)
            changed |= schedule.emit(place, tokens[:kept_count], kept_count - 1, drafted)
    done.decode_seconds = perf_counter() - began - done.prefill_seconds
    done.timing = clock.timing
    done.timing.host = max(0.0, done.decode_seconds - done.timing.total)
    return done


@dataclass
class _State:
    """Device side of the rows: anchor ``[N]``, tokens still to emit ``[N]``, stop ids ``[N, S]`` padded with -1."""

    anchor: Tensor
    remaining: Tensor
    stops: Tensor
    kept: Tensor


class _Loop:
    """One round and one prefill; what does not change while decoding."""

    def __init__(
        self,
        target: DecodingTarget,
        drafter: DecodingDrafter,
        corrector: DecodingCorrector,
        head: Head,
        mask_token_id: int,
        params: SamplingParams,
        block_size: int | None,
        rule: Rule,
        generator: torch.Generator | None,
    ) -> None:
        block = drafter.block_size if block_size is None else block_size
        self.first = 0 if drafter.sample_from_anchor else 1
        self.drafts = block - self.first
        if not self.first < block <= drafter.block_size:
            raise ValueError(
                f"block_size {block} must be in {self.first + 1}..{drafter.block_size}: a block needs a slot that "
                "predicts, and no more slots than the drafter was made for"
            )
        if not 0 <= mask_token_id < target.spec.vocab_size:
            raise ValueError(f"mask_token_id {mask_token_id} is outside the vocabulary 0..{target.spec.vocab_size - 1}")
        if rule not in ("token", "block"):
            raise ValueError(f"rule {rule!r} is unknown; use 'token' or 'block'")
        self.target, self.drafter, self.corrector, self.head = target, drafter, corrector, head
        self.params, self.rule, self.generator = params, rule, generator
        self.masks = torch.full((1, block - 1), mask_token_id, device=target.device)
        self.places = torch.arange(self.drafts + 1, device=target.device)

    def new_caches(self, rows: int, capacity: int) -> tuple[KeyValueCache, KeyValueCache]:
        return self.target.new_cache(rows, capacity), self.drafter.new_cache(rows, capacity)

    def load(self, caches: tuple[KeyValueCache, KeyValueCache], places: list[int], prompts: list[Tensor]) -> list[int]:
        """Prefill prompts into the given rows of both caches; their first new tokens."""
        first, filled, features = prefill(self.target, prompts, self.params, self.generator, features=True)
        assert features is not None
        context = self.drafter.new_cache(len(prompts), filled.capacity)
        self.drafter.extend(features, context)
        context.advance(filled.lengths, extent=filled.extent)
        rows = torch.tensor(places, device=self.target.device)
        for cache, fresh in zip(caches, (filled, context), strict=True):
            cache.insert(rows, fresh)
        return first.tolist()

    def state(self, schedule: Schedule) -> _State:
        """Put what the host knows of the rows onto the device."""
        device = self.target.device
        width = max(1, *(len(row.stops) for row in schedule.live))
        stops = [[*row.stops, *[-1] * (width - len(row.stops))] for row in schedule.live]
        remaining = torch.tensor([row.remaining for row in schedule.live], device=device)
        return _State(schedule.anchors(device), remaining, torch.tensor(stops, device=device), remaining)

    def round(self, state: _State, caches: tuple[KeyValueCache, KeyValueCache], clock: RoundClock) -> Tensor:
        """Draft, verify and move ``state`` on; ``[N, K + 3]`` tokens, how many of them are kept, accepted length.

        The lengths of the caches are left to the caller, who learns their host-side bound from the answer.
        """
        cache, context = caches
        clock.start("draft")
        anchor = state.anchor[:, None]
        block = torch.cat([anchor, self.masks.expand(len(anchor), -1)], 1)
        hidden = self.drafter.draft(self.target.embed(block), context)[:, self.first :]
        logits = self.head(hidden.to(self.head.weight.dtype))
        clock.start("correct")
        temperature = self.params.temperature
        proposal = self.corrector.propose(hidden, logits, state.anchor, temperature, self.generator, self.head)
        clock.start("verify")
        out = self.target.forward(torch.cat([anchor, proposal.tokens], 1), cache)
        assert out.hidden is not None
        assert out.features is not None
        verdict = self._verify(self.target.head(out.hidden), proposal, (state.remaining - 1).clamp_max(self.drafts))
        clock.start("draft")
        self.drafter.extend(out.features, context)
        clock.start()
        fresh = verdict.next_token[:, None]
        tokens = torch.cat([proposal.tokens, fresh], 1).scatter(1, verdict.accepted[:, None], fresh)
        stopped = (tokens[..., None] == state.stops[:, None]).any(-1)
        first_stop = torch.where(stopped, self.places, self.drafts).amin(-1)
        state.kept = torch.minimum(verdict.accepted, first_stop) + 1
        state.anchor = verdict.next_token
        state.remaining = state.remaining - state.kept
        return torch.cat([tokens, state.kept[:, None], verdict.accepted[:, None]], 1)

    def _verify(self, logits: Tensor, proposal: Proposal, limit: Tensor) -> Verdict:
        if self.params.greedy:
            return verify_greedy(logits, proposal.tokens, limit)
        p = to_probs(logits, self.params)
        q = None if proposal.q is None else proposal.q.to(p.dtype)
        return verify(p, proposal.tokens, q, rule=self.rule, generator=self.generator, limit=limit)
