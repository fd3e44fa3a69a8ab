"""A loader that continues at the exact next batch after a resume."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.utils.data import DataLoader

from specdraft.data.sampler import EpochBatchSampler
from specdraft.data.tokens import Examples, collate
from specdraft.types import DraftBatch


class ResumableLoader:
    """Batches of :class:`Examples` with a state that counts *consumed* batches, however many workers have prefetched.

    It is no ``DataLoader``, so that Lightning does not replace its sampler, but offers what Lightning asks for:
    ``batch_sampler.sampler.set_epoch`` at the start of an epoch, ``state_dict`` and ``load_state_dict`` for
    checkpoints, ``len``.

    Args:
        examples: The rows.
        sampler: Order of the rows.
        num_workers: Processes that load batches ahead; 0 loads in this one.
        pin_memory: Whether batches are copied into page-locked memory (only where there is a CUDA device).

    Attributes:
        waited: Seconds that consumers have waited for batches so far.
    """

    def __init__(
        self, examples: Examples, sampler: EpochBatchSampler, *, num_workers: int = 0, pin_memory: bool = False
    ) -> None:
        self.batch_sampler = sampler
        self.waited = 0.0
        self._consumed = 0
        self._loader = DataLoader(
            examples,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=pin_memory and torch.cuda.is_available(),
        )

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[DraftBatch]:
        # A generator, so that nothing runs before the first batch is asked for: Lightning makes the iterator before it
        # sets the epoch.
        self._consumed = self.batch_sampler.start
        began = time.perf_counter()
        for batch in self._loader:
            self.waited += time.perf_counter() - began
            self._consumed += 1  # before the yield: a checkpoint is written while the consumer holds the batch
            yield batch
            began = time.perf_counter()

    @property
    def _iterator(self) -> Any:
        """Where Lightning finds the workers of a loader, to end them when a run is over."""
        return self._loader._iterator

    @_iterator.setter
    def _iterator(self, value: Any) -> None:
        self._loader._iterator = value

    def state_dict(self) -> dict[str, Any]:
        """Epoch and number of consumed batches, the same on every rank."""
        return {"epoch": self.batch_sampler.epoch, "consumed": self._consumed, **self.batch_sampler.layout}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue behind the consumed batches of a saved epoch.

        A state of other rows, another seed, batch size or number of ranks has no exact next batch; then the epoch
        starts at its beginning, with a warning.
        """
        self.batch_sampler.set_epoch(state["epoch"])
        own, saved = self.batch_sampler.layout, {k: v for k, v in state.items() if k not in ("epoch", "consumed")}
        names = [*own, *(name for name in saved if name not in own)]
        changed = {name: (saved.get(name), own.get(name)) for name in names if saved.get(name) != own.get(name)}
        if changed:
            shown = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changed.items())
            rank_zero_warn(
                f"the data changed since the checkpoint ({shown}): its epoch starts again at the first batch"
            )
        consumed = 0 if changed else state["consumed"]
        self._consumed = self.batch_sampler.start = 0 if consumed >= len(self) else consumed
