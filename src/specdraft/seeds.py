"""Random numbers of a training step as a function of where it stands, so that resuming draws the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def run_seed(seed: int | None) -> int:
    """A part's own seed; None is that of the run (``seed_everything``), 0 where none was set."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed


def mixed(*where: int) -> int:
    """One seed of a few numbers, such as seed, epoch, batch and rank."""
    out = 0
    for value in where:
        out = (out * 1_000_003 + value + 1) % (1 << 63)
    return out


def generator_of(device: torch.device, *where: int) -> torch.Generator:
    """A generator seeded by a few numbers, such as seed, epoch, batch and rank."""
    return torch.Generator(device=device).manual_seed(mixed(*where))


@contextmanager
def seeded(device: torch.device, *where: int) -> Iterator[None]:
    """Draw what layers take from torch's global generators, such as dropout masks, from a few numbers instead.

    The generators of the CPU and of ``device`` go on afterwards as if nothing had been drawn.
    """
    others = [] if device.type in ("cpu", "mps") else [device]  # that of mps cannot be asked for by device
    with torch.random.fork_rng(others, device_type=device.type):
        # another stream than that of the anchors, which are seeded by the same numbers
        seed = mixed(*where, 1)
        torch.default_generator.manual_seed(seed)
        if device.type != "cpu":
            torch.get_device_module(device).manual_seed(seed)
        yield
