"""What the CPU allocator really handed out, to hold estimates against."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch.profiler import ProfilerActivity, profile


class AllocationPeak:
    """Largest number of bytes that the code inside holds at once beyond what was alive before; CPU only.

    Attributes:
        bytes: The peak, known behind the block.
    """

    bytes = 0

    def __enter__(self) -> AllocationPeak:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, trace)
        results: Any = self._profile.profiler.kineto_results  # type: ignore[union-attr]
        events = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
        alive = 0
        for _, size in sorted(events, key=lambda event: event[0]):
            alive += size
            self.bytes = max(self.bytes, alive)
