"""CUDA graphs of a decoding step: hundreds of small kernels launched as one, at static shapes.

A graph replays kernels on fixed addresses. So everything that a step reads and writes lives in buffers that stay:
caches in ``static`` mode (reads cover the whole capacity, lengths move in place), the rows' state, and rows that
ended stay in the batch without moving. Targets say with ``static_shapes`` that their forward allows it; where a
capture fails (a corrector that asks the device for a value, say) the loop runs eagerly, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from specdraft.cache import KeyValueCache
from specdraft.decoding.sampling import SamplingParams
from specdraft.types import DecodingTarget

Stage: TypeAlias = Callable[[], None]
WARM_UPS = 3
# a multiple that the kernels for masked attention take without padding
ALIGNMENT = 64


def wanted(target: DecodingTarget, params: SamplingParams, graphs: bool | None) -> bool:
    """Whether a loop should try graphs.

    Args:
        target: The target; only one with ``static_shapes`` on a CUDA device can be captured.
        params: How tokens are drawn; sampled rounds run eagerly.
        graphs: What the caller asked for, None for automatic.
    """
    return (
        graphs is not False
        and params.greedy
        and target.device.type == "cuda"
        and bool(getattr(target, "static_shapes", False))
        and not torch.is_autocast_enabled("cuda")  # its copies of the weights would be captured and then freed
    )


def aligned(capacity: int) -> int:
    """Capacity of a static cache that holds at least ``capacity`` positions."""
    return -(-capacity // ALIGNMENT) * ALIGNMENT


def capture(stages: Sequence[Stage], caches: Sequence[KeyValueCache], device: torch.device) -> list[Stage] | None:
    """Turn stages that run one behind the other into replays of graphs; None if that fails.

    The stages are run a few times first, on whatever the buffers hold, so they must be harmless to repeat.

    Args:
        stages: Functions that only read and write buffers that stay, or what an earlier stage left.
        caches: The caches that they use; put into static mode, and out of it again on failure.
        device: The CUDA device.
    """
    side = torch.cuda.Stream(device)
    for cache in caches:
        cache.static = True
    try:
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                for stage in stages:
                    stage()
            with _no_synchronisation():  # fails here, since a capture that fails leaves the random state unusable
                for stage in stages:
                    stage()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        pool: Any = torch.cuda.graph_pool_handle()
        replays: list[Stage] = []
        for stage in stages:
            graph = torch.cuda.CUDAGraph()
            # on the stream of the warm-up: the default one belongs to the device that is current, maybe another
            with torch.cuda.graph(graph, pool=pool, stream=side):
                stage()
            replays.append(graph.replay)
        return replays
    except (RuntimeError, ValueError) as error:
        for cache in caches:
            cache.static = False
        torch.cuda.current_stream(device).wait_stream(side)  # what it has begun still writes to the buffers
        reason = str(error).split("\n")[0]
        warnings.warn(f"CUDA graphs are not used in this loop, it runs eagerly: {reason}", stacklevel=3)
        return None


@contextmanager
def _no_synchronisation() -> Iterator[None]:
    """Raise RuntimeError where the host would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
