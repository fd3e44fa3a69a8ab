"""Weights, gradients and optimiser state sharded over the ranks (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, Strategy, StrategyRegistry
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from typing_extensions import override

from specdraft.checkpoints.atomic import damage_named


class FullySharded(ModelParallelStrategy):
    """``strategy: fsdp2``: every rank holds a share of drafter and corrector, and of what trains them.

    The frozen target is no part of it: each rank keeps a whole one. Parts are gathered whole for a forward, and once
    for the decoding inside validation, where ranks run different numbers of rounds. A checkpoint is one ordinary file,
    gathered on rank 0, that other strategies and the other commands load.

    Args:
        timeout: Seconds that a collective may take.
    """

    def __init__(self, timeout: float = 1800.0) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, timeout=timedelta(seconds=timeout))

    @override
    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    @override
    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        if self._sharded:
            with damage_named(checkpoint_path):  # this way past the plugin for files
                return super().load_checkpoint(checkpoint_path, weights_only)
        # nothing is sharded outside of training
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        if not self._sharded:  # sharded weights were taken by load_checkpoint
            Strategy.load_model_state_dict(self, checkpoint, strict)

    @property
    def _sharded(self) -> bool:
        assert self.lightning_module is not None
        return any(is_sharded(part) for part in self.lightning_module.modules())


StrategyRegistry.register("fsdp2", FullySharded, description="drafter and corrector sharded over the ranks")


def shard(strategy: Strategy, *parts: nn.Module) -> None:
    """Shard parts with parameters that are not sharded yet, if the strategy wants it.

    Raises:
        ValueError: If the strategy shards in a way that real decoding inside validation does not survive.
    """
    if isinstance(strategy, FSDPStrategy):
        raise ValueError("strategy fsdp wraps the whole module and cannot decode in validation; use strategy fsdp2")
    if isinstance(strategy, ModelParallelStrategy):
        for part in parts:
            if any(True for _ in part.parameters()) and not is_sharded(part):
                # one unit each: drafters are a few layers, and units inside would gather in every decoding round
                fully_shard(part, mesh=strategy.device_mesh["data_parallel"])


def is_sharded(part: nn.Module) -> bool:
    """Whether a part's weights are spread over the ranks."""
    return isinstance(part, FSDPModule)


def class_name(part: nn.Module) -> str:
    """Name of a part's own class; sharding derives another one from it."""
    return type(part).__mro__[2 if is_sharded(part) else 0].__name__


@contextmanager
def gathered(*parts: nn.Module) -> Iterator[None]:
    """Hold the whole weights of sharded parts, so that they run without talking to other ranks; all ranks enter."""
    sharded: list[Any] = [part for part in parts if is_sharded(part)]
    for part in sharded:
        part.unshard()
    try:
        yield
    finally:
        for part in sharded:
            part.reshard()
