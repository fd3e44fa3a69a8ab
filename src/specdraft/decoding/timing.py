"""Seconds of each part of a round, without stopping the device between the parts."""

from __future__ import annotations

from time import perf_counter

import torch

from specdraft.types import RoundTiming


class RoundClock:
    """Books time to the parts of a round; while torch's profiler runs, the parts appear in its trace by name.

    On CUDA the marks are events, which are read only after the round's own transfer to the host has synchronised:
    measuring the parts costs no extra synchronisation. Elsewhere they are ``perf_counter``.

    Args:
        device: Device that the work runs on.

    Attributes:
        timing: Sum over all rounds read so far.
    """

    def __init__(self, device: torch.device) -> None:
        self.timing = RoundTiming()
        self._cuda = device.type == "cuda"
        self._device = device
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []
        self._range: torch.profiler.record_function | None = None

    def start(self, part: str = "") -> None:
        """End the running interval and begin one of ``part``; without a name it belongs to no part."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        self._marks.append((part, self._now()))
        if part and torch.autograd.profiler._is_profiler_enabled:
            self._range = torch.profiler.record_function(part)
            self._range.__enter__()

    def read(self) -> None:
        """Add the marked intervals up; call it once the device has finished them."""
        for (part, before), (_, after) in zip(self._marks, self._marks[1:], strict=False):
            if part:
                setattr(self.timing, part, getattr(self.timing, part) + _seconds(before, after))
        self._marks.clear()

    def _now(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _seconds(before: float | torch.cuda.Event, after: float | torch.cuda.Event) -> float:
    if isinstance(before, float) and isinstance(after, float):
        return after - before
    assert not isinstance(before, float)
    assert not isinstance(after, float)
    return before.elapsed_time(after) / 1000
