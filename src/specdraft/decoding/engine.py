"""The speculative loop: a batch of requests with ragged progress."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from time import perf_counter

import torch
from torch import Tensor

from specdraft.cache import KeyValueCache
from specdraft.decoding.confidence import ConfidenceCut
from specdraft.decoding.graphs import Stage, aligned, capture, wanted
from specdraft.decoding.policy import BlockPolicy, FixedBlock, RunningSurvival
from specdraft.decoding.prefill import prefill
from specdraft.decoding.requests import DecodeResult, OnFinish, Request, RoundLog
from specdraft.decoding.rounds import PARTS, Parts, Round, RowState
from specdraft.decoding.sampling import SamplingParams
from specdraft.decoding.schedule import Schedule
from specdraft.decoding.timing import RoundClock
from specdraft.decoding.verify import Rule
from specdraft.types import DecodingCorrector, DecodingDrafter, DecodingTarget, Head

Caches = tuple[KeyValueCache, KeyValueCache]


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
    policy: BlockPolicy | None = None,
    rule: Rule = "token",
    generator: torch.Generator | None = None,
    on_finish: OnFinish | None = None,
    graphs: bool | None = None,
) -> DecodeResult:
    """Decode with drafts, ``concurrency`` requests at a time; a row that ends is refilled from the queue.

    Lossless: greedy output equals the autoregressive one up to numerics, sampled output follows the same law, whatever
    block sizes a policy chooses. Modules are used as they are, so put them into evaluation mode first.

    Args:
        target: The target.
        drafter: Drafts a block from the target's features.
        corrector: Chooses the drafts.
        head: The draft head, maybe of a reduced vocabulary.
        requests: What to decode.
        mask_token_id: Id that fills the undrafted slots, the one the drafter was trained with.
        params: How tokens are drawn from the target (default: greedy).
        concurrency: Rows of the batch.
        block_size: Input slots of every block, at most the drafter's own (default: that).
        policy: Asked for the block size of each round, in place of ``block_size``.
        rule: How sampled drafts are verified, ``token`` or ``block``.
        generator: Source of randomness, on the target's device.
        on_finish: Called with index and result whenever a request ends.
        graphs: Replay rounds as CUDA graphs; None does so where it is possible (greedy, on CUDA).

    Returns:
        Results in the order of the requests, with the time of each part.

    Raises:
        ValueError: If a request cannot be decoded, a block does not fit the drafter, or both ``block_size`` and
            ``policy`` are given.
    """
    if policy is None:
        policy = FixedBlock(drafter.block_size if block_size is None else block_size)
    elif block_size is not None:
        raise ValueError(f"block_size {block_size} and a policy were both given; leave one out")
    if isinstance(policy, RunningSurvival) and isinstance(corrector, ConfidenceCut):
        warnings.warn(
            "RunningSurvival learns from the drafts that are offered, but confidence_threshold "
            f"{corrector.threshold:g} offers the likely ones alone: it takes acceptance for higher than it is; outputs "
            "stay exact, but use StaticTable or threshold 0 for the fastest block size",
            stacklevel=2,
        )
    parts = Parts(target, drafter, corrector, head, mask_token_id, params or SamplingParams(), rule, generator)
    rounds = {size: Round(parts, size) for size in policy.sizes}
    schedule = Schedule(requests, target.spec, concurrency, on_finish)
    done = DecodeResult(schedule.results)
    if not requests:
        return done
    static = wanted(target, parts.params, graphs)
    capacity = schedule.longest + max(each.drafts for each in rounds.values()) + 1
    caches = _new_caches(parts, len(schedule.rows), aligned(capacity) if static else capacity)
    state = RowState.empty(schedule, target.device)
    replays = _captured(rounds, state, caches, target.device) if static else None
    clock = RoundClock(target.device)
    live: list[str] = []
    began = perf_counter()
    changed = True
    while True:
        if changed:
            start = perf_counter()
            schedule.refill(lambda places, prompts: _load(parts, caches, places, prompts))
            done.prefill_seconds += perf_counter() - start
            if not schedule.live:
                break
            if replays is None and schedule.has_gaps:
                kept = torch.tensor(schedule.compact(), device=target.device)
                for cache in caches:
                    cache.select(kept)
                state = RowState.empty(schedule, target.device)
            state.load(schedule)
            live = [row.workload for row in schedule.live]
        start = perf_counter()
        size = policy.choose(live, len(schedule.rows))
        this = _chosen(rounds, size, policy)
        for part, stage in zip(PARTS, replays[size] if replays else this.stages(state, caches), strict=True):
            clock.start(part)
            stage()
        clock.start()
        packet = this.packet.tolist()  # the only synchronisation of a round
        clock.read()
        done.steps += 1
        changed = False
        ended: list[tuple[int, list[int], int, int]] = []
        extent = emitted = 0
        for place, (*tokens, kept_count, accepted, limit) in enumerate(packet):
            row = schedule.rows[place]
            if row is None:
                continue
            extent = max(extent, row.length + kept_count)
            emitted += kept_count
            # drafts behind a stop token inside the accepted prefix, or past the limit, had no chance to count
            drafted = kept_count - 1 if kept_count <= accepted else limit
            ended.append((place, tokens[:kept_count], kept_count - 1, drafted))
            policy.observe(row.workload, size, drafted, kept_count - 1)
        for cache in caches:
            cache.advance(this.kept, extent=extent)
        for place, tokens, accepted, drafted in ended:
            changed |= schedule.emit(place, tokens, accepted, drafted)
        done.log.append(RoundLog(size, len(live), emitted, perf_counter() - start))
    done.decode_seconds = perf_counter() - began - done.prefill_seconds
    done.timing = clock.timing
    done.timing.host = max(0.0, done.decode_seconds - done.timing.total)
    return done


def _new_caches(parts: Parts, rows: int, capacity: int) -> Caches:
    return parts.target.new_cache(rows, capacity), parts.drafter.new_cache(rows, capacity)


def _captured(
    rounds: Mapping[int, Round], state: RowState, caches: Caches, device: torch.device
) -> dict[int, list[Stage]] | None:
    """Replays by block size; None as soon as one cannot be captured, since the caches serve all of them alike."""
    replays = {}
    for size, each in rounds.items():
        stages = capture(each.stages(state, caches), caches, device)
        if stages is None:
            return None
        replays[size] = stages
    return replays


def _chosen(rounds: Mapping[int, Round], size: int, policy: BlockPolicy) -> Round:
    if size not in rounds:
        raise ValueError(
            f"{type(policy).__name__} chose block size {size}, which is not among its sizes {policy.sizes}"
        )
    return rounds[size]


def _load(parts: Parts, caches: Caches, places: list[int], prompts: list[Tensor]) -> list[int]:
    """Prefill prompts into the given rows of both caches; their first new tokens."""
    first, filled, features = prefill(parts.target, prompts, parts.params, parts.generator, features=True)
    assert features is not None
    context = parts.drafter.new_cache(len(prompts), filled.capacity)
    parts.drafter.extend(features, context)
    context.advance(filled.lengths, extent=filled.extent)
    rows = torch.tensor(places, device=parts.target.device)
    for cache, fresh in zip(caches, (filled, context), strict=True):
        cache.insert(rows, fresh)
    return first.tolist()
