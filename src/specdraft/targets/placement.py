"""Where a target goes whose module is still on its way to a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_DEVICE: ContextVar[torch.device | None] = ContextVar("device", default=None)


@contextmanager
def loading_onto(device: torch.device | str) -> Iterator[None]:
    """Load targets onto a device within the ``with`` block.

    Lightning builds a module of a checkpoint on the CPU and moves it afterwards, but the device decides the type of a
    target's weights where it was left to ``auto``.

    Args:
        device: Where the module is going to compute.
    """
    token = _DEVICE.set(torch.device(device))
    try:
        yield
    finally:
        _DEVICE.reset(token)


def load_device() -> torch.device | None:
    """The device of :func:`loading_onto`, None outside of it."""
    return _DEVICE.get()
