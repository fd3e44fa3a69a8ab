"""The speculative loop: a batch of requests with ragged progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from specdraft.cache import KeyValueCache
from specdraft.decoding.confidence import offered
from specdraft.decoding.graphs import Stage, aligned, capture, wanted
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
    graphs: bool | None = None,
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
        graphs: Replay rounds as CUDA graphs; None does so where it is possible (greedy, on CUDA).

    Returns:
        Results in the order of the requests, with the time of each part.

    Raises:
        ValueError: If a request cannot be decoded, or the block does not fit the drafter.
    """
    params = params or SamplingParams()
    loop = _Loop(target, drafter, corrector, head, mask_token_id, params, block_size, rule, generator)
    schedule = Schedule(requests, target.spec, concurrency, on_finish)
    done = DecodeResult(schedule.results)
    if not requests:
        return done
    static = wanted(target, params, graphs)
    capacity = schedule.longest + loop.drafts + 1
    caches = loop.new_caches(len(schedule.rows), aligned(capacity) if static else capacity)
    state = _State.empty(schedule, target.device)
    stages: list[Stage] | None = None
    if static:
        stages = capture(loop.stages(state, caches), caches, target.device)
    clock = RoundClock(target.device)
    began = perf_counter()
    changed = True
    while True:
        if changed:
            start = perf_counter()
            schedule.refill(lambda places, prompts: loop.load(caches, places, prompts))
            done.prefill_seconds += perf_counter() - start
            if not schedule.live:
                break
            if stages is None and schedule.has_gaps:
                kept = torch.tensor(schedule.compact(), device=target.device)
                for cache in caches:
                    cache.select(kept)
                state = _State.empty(schedule, target.device)
            state.load(schedule)
        for part, stage in zip(PARTS, stages or loop.stages(state, caches), strict=True):
            clock.start(part)
            stage()
        clock.start()
        packet = state.packet.tolist()  # the only synchronisation of a round
        clock.read()
        done.steps += 1
        changed = False
        ended: list[tuple[int, list[int], int, int]] = []
        extent = 0
        for place, (*tokens, kept_count, accepted, limit) in enumerate(packet):
            row = schedule.rows[place]
            if row is None:
                continue
            extent = max(extent, row.length + kept_count)
            # drafts behind a stop token inside the accepted prefix, or past the limit, had no chance to count
            drafted = kept_count - 1 if kept_count <= accepted else limit
            ended.append((place, tokens[:kept_count], kept_count - 1, drafted))
        for cache in caches:
            cache.advance(state.kept, extent=extent)
        for place, tokens, accepted, drafted in ended:
            changed |= schedule.emit(place, tokens, accepted, drafted)
    done.decode_seconds = perf_counter() - began - done.prefill_seconds
    done.timing = clock.timing
    done.timing.host = max(0.0, done.decode_seconds - done.timing.total)
    return done


# where the time of each stage is booked: what is written behind a verification is context of the drafter
PARTS = ("draft", "correct", "verify", "draft")


@dataclass
class _State:
    """Device side of the rows, in buffers that stay, and what a round leaves for its later stages.

    Anchor ``[N]``, tokens still to emit ``[N]`` (0 in an empty row), stop ids ``[N, S]`` padded with -1; ``packet`` is
    ``[N, K + 4]``: tokens, how many of them are kept, accepted length, most drafts that could be accepted.
    """

    anchor: Tensor
    remaining: Tensor
    stops: Tensor
    hidden: Tensor = field(init=False)
    logits: Tensor = field(init=False)
    proposal: Proposal = field(init=False)
    limit: Tensor = field(init=False)
    features: Tensor = field(init=False)
    verdict: Verdict = field(init=False)
    kept: Tensor = field(init=False)
    packet: Tensor = field(init=False)

    @classmethod
    def empty(cls, schedule: Schedule, device: torch.device) -> _State:
        zeros = torch.zeros(len(schedule.rows), dtype=torch.int64, device=device)
        return cls(zeros, zeros.clone(), zeros.new_full((len(zeros), schedule.stop_width), -1))

    def load(self, schedule: Schedule) -> None:
        """Put what the host knows of the rows onto the device."""
        device = self.anchor.device
        self.anchor.copy_(schedule.anchors(device))
        self.remaining.copy_(schedule.remaining(device))
        self.stops.copy_(schedule.stops(device))


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

    def stages(self, state: _State, caches: tuple[KeyValueCache, KeyValueCache]) -> list[Stage]:
        """Draft, correct, verify and move ``state`` on, one function each.

        The lengths of the caches are left to the caller, who learns their host-side bound from the packet.
        """
        cache, context = caches
        return [
            lambda: self._draft(state, context),
            lambda: self._correct(state),
            lambda: self._check(state, cache),
            lambda: self._finish(state, context),
        ]

    def _draft(self, state: _State, context: KeyValueCache) -> None:
        anchor = state.anchor[:, None]
        block = torch.cat([anchor, self.masks.expand(len(anchor), -1)], 1)
        state.hidden = self.drafter.draft(self.target.embed(block), context)[:, self.first :]
        state.logits = self.head(state.hidden.to(self.head.weight.dtype))

    def _correct(self, state: _State) -> None:
        temperature = self.params.temperature
        state.proposal = self.corrector.propose(
            state.hidden, state.logits, state.anchor, temperature, self.generator, self.head
        )

    def _check(self, state: _State, cache: KeyValueCache) -> None:
        room = (state.remaining - 1).clamp(0, self.drafts)
        drafts, state.limit = offered(state.proposal, room, cache.static)
        out = self.target.forward(torch.cat([state.anchor[:, None], drafts.tokens], 1), cache)
        assert out.hidden is not None
        assert out.features is not None
        state.features = out.features
        state.verdict = self._verify(self.target.head(out.hidden), drafts, state.limit)

    def _finish(self, state: _State, context: KeyValueCache) -> None:
        self.drafter.extend(state.features, context)
        accepted = state.verdict.accepted
        fresh = state.verdict.next_token[:, None]
        tokens = torch.cat([state.proposal.tokens, fresh], 1).scatter(1, accepted[:, None], fresh)
        stopped = (tokens[..., None] == state.stops[:, None]).any(-1)
        first_stop = torch.where(stopped, self.places, self.drafts).amin(-1)
        # an empty row stays where it is
        state.kept = torch.where(state.remaining > 0, torch.minimum(accepted, first_stop) + 1, 0)
        state.packet = torch.cat([tokens, state.kept[:, None], accepted[:, None], state.limit[:, None]], 1)
        state.anchor.copy_(state.verdict.next_token)
        state.remaining.sub_(state.kept)

    def _verify(self, logits: Tensor, proposal: Proposal, limit: Tensor) -> Verdict:
        if self.params.greedy:
            return verify_greedy(logits, proposal.tokens, limit)
        p = to_probs(logits, self.params)
        q = None if proposal.q is None else proposal.q.to(p.dtype)
        return verify(p, proposal.tokens, q, rule=self.rule, generator=self.generator, limit=limit)
