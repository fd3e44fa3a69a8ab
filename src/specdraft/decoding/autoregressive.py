"""The baseline: one token per target forward, in a lean loop of its own."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from specdraft.decoding.prefill import prefill
from specdraft.decoding.requests import DecodeResult, OnFinish, Request
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
    cache = target.new_cache(len(schedule.rows), schedule.longest + 1)

    def load(places: list[int], prompts: list[Tensor]) -> list[int]:
        first, filled, _ = prefill(target, prompts, params, generator)
        cache.insert(torch.tensor(places, device=target.device), filled)
        return first.tolist()

    began = perf_counter()
    changed = True
    while True:
        if changed:
            start = perf_counter()
            schedule.refill(load)
            done.prefill_seconds += perf_counter() - start
            if schedule.has_gaps:
                kept = schedule.compact()
                if not kept:
                    break
                cache.select(torch.tensor(kept, device=target.device))
            tokens = schedule.anchors(target.device)
            changed = False
        out = target.forward(tokens[:, None], cache, features=False)
        cache.advance(1, extent=cache.extent + 1)
        assert out.hidden is not None
        tokens = next_tokens(target.head(out.hidden[:, -1]), params, generator)
        done.steps += 1
        for place, token in enumerate(tokens.tolist()):
            changed |= schedule.emit(place, [token], accepted=0)
    done.decode_seconds = perf_counter() - began - done.prefill_seconds
    done.timing = RoundTiming(verify=done.decode_seconds)
    return done
