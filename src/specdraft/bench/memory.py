"""Peak memory of a stretch of code."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch


class PeakMemory:
    """Peak within a ``with`` block: bytes allocated on CUDA, else the resident set of the process on Linux.

    Args:
        device: Device that the work runs on.

    Attributes:
        mib: Peak in MiB, None where it cannot be told.
        kind: What was measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.mib: float | None = None
        self.kind = "allocated on the GPU" if device.type == "cuda" else "resident set of the process"

    def __enter__(self) -> PeakMemory:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            _reset_resident_peak()
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            self.mib = torch.cuda.max_memory_allocated(self._device) / 2**20
        else:
            self.mib = _resident_peak()


def _reset_resident_peak() -> None:
    with suppress(OSError):  # the peak is then that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def _resident_peak() -> float | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), None)
