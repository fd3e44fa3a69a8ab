"""The baseline: one token per target forward, in a lean loop of its own."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from specdraft.decoding.graphs import Stage, aligned, capture, wanted
from specdraft.decoding.prefill import prefill
from specdraft.decoding.requests import DecodeResult, OnFinish, Request, RoundLog
from specdraft.decoding.sampling import SamplingParams, next_tokens
from specdraft.decoding.schedule import Schedule
from specdraft.types import DecodingTarget, RoundTiming


@torch.inference_mode()
def autoregressive_decode(
    target: DecodingTarget,
    requests: list[Request],
    *,
    params: SamplingParams | None = None,
    concurrency: int = 1,
    generator: torch.Generator | None = None,
    on_finish: OnFinish | None = None,
    graphs: bool | None = None,
) -> DecodeResult:
    """Decode without drafts, ``concurrency`` requests at a time; a row that ends is refilled from the queue.

    Deliberately not the speculative loop with nothing to draft: that one pays for features, padding and bookkeeping
    that a baseline must not be charged for.

    Args:
        target: The target.
        requests: What to decode.
        params: How tokens are drawn (default: greedy).
        concurrency: Rows of the batch.
        generator: Source of randomness, on the target's device.
        on_finish: Called with index and result whenever a request ends.
        graphs: Replay steps as a CUDA graph; None does so where it is possible (greedy, on CUDA).

    Returns:
        Results in the order of the requests. ``timing`` has one part, ``verify``.

    Raises:
        ValueError: If a request cannot be decoded.
    """
    params = params or SamplingParams()
    schedule = Schedule(requests, target.spec, concurrency, on_finish)
    done = DecodeResult(schedule.results)
    if not requests:
        return done
    static = wanted(target, params, graphs)
    capacity = schedule.longest + 1
    cache = target.new_cache(len(schedule.rows), aligned(capacity) if static else capacity)
    tokens = torch.zeros(len(schedule.rows), dtype=torch.int64, device=target.device)
    replay: list[Stage] | None = None

    def step() -> None:
        out = target.forward(tokens[:, None], cache, features=False)
        assert out.hidden is not None
        tokens.copy_(next_tokens(target.head(out.hidden[:, -1]), params, generator))

    if static:
        replay = capture([step], [cache], target.device)

    def load(places: list[int], prompts: list[Tensor]) -> list[int]:
        first, filled, _ = prefill(target, prompts, params, generator)
        cache.insert(torch.tensor(places, device=target.device), filled)
        return first.tolist()

    began = perf_counter()
    changed = True
    live = 0
    moves: Tensor | int = 1
    while True:
        if changed:
            start = perf_counter()
            schedule.refill(load)
            done.prefill_seconds += perf_counter() - start
            if not schedule.live:
                break
            if replay is not None:  # rows that ended stay, and do not move
                moves = schedule.remaining(target.device).clamp_max(1)
                tokens.copy_(schedule.anchors(target.device))
            else:
                if schedule.has_gaps:
                    cache.select(torch.tensor(schedule.compact(), device=target.device))
                tokens = schedule.anchors(target.device)
            cache.extent = schedule.extent
            changed = False
            live = len(schedule.live)
        start = perf_counter()
        if replay is None:
            step()
        else:
            replay[0]()
        cache.advance(moves, extent=cache.extent + 1)
        done.steps += 1
        for place, token in enumerate(tokens.tolist()):
            if schedule.rows[place] is not None:
                changed |= schedule.emit(place, [token], accepted=0)
        done.log.append(RoundLog(0, live, live, perf_counter() - start))
    done.decode_seconds = perf_counter() - began - done.prefill_seconds
    done.timing = RoundTiming(verify=done.decode_seconds)
    return done
