"""A step that supervises nothing or is not finite touches neither weights nor optimiser state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdraft.step_sums import NonFiniteLossError, StepSums
from specdraft.types import BlockBatch, DraftBatch


class OneProcess:
    """Stands for the module: one rank that logs into a dictionary."""

    def __init__(self, accumulate: int = 1) -> None:
        self.logged: dict[str, Any] = {}
        strategy = SimpleNamespace(reduce=lambda tensor, reduce_op: tensor)
        plugin = SimpleNamespace(scaler=None)
        self.trainer = SimpleNamespace(
            strategy=strategy, precision_plugin=plugin, accumulate_grad_batches=accumulate, world_size=1, global_step=7
        )

    def log(self, name: str, value: Any, prog_bar: bool = False) -> None:
        self.logged[name] = float(value)


def step(sums: StepSums, weight: Tensor, optimizer: Any, module: OneProcess, value: float, slots: int) -> None:
    """One batch of ``slots`` supervised slots whose loss is ``value`` times the weight for each of them."""
    supervised = torch.zeros(1, 1, 4, dtype=torch.bool)
    supervised[..., :slots] = True
    ids = torch.zeros(1, 6, dtype=torch.int64)
    blocks = BlockBatch(ids[:, :1], supervised[..., 0], ids, supervised, ids, supervised, ids)
    numerator = (weight * value).sum() * slots
    numerator.backward()
    sums.add(numerator, torch.tensor(float(slots)), supervised, blocks, DraftBatch(ids, ids > 0, ids, ids))
    sums.finish(optimizer, module)  # type: ignore[arg-type]
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def parts() -> tuple[Tensor, torch.optim.AdamW, OneProcess]:
    weight = torch.ones(2, requires_grad=True)
    return weight, torch.optim.AdamW([weight], lr=0.1, weight_decay=0.1), OneProcess()


def test_skipped_steps_change_nothing(parts: Any) -> None:
    weight, optimizer, module = parts
    sums = StepSums(skip_non_finite=2)
    step(sums, weight, optimizer, module, 3.0, 4)
    assert module.logged["train/loss"] == pytest.approx(6.0)
    assert module.logged["train/grad_norm"] == pytest.approx(3 * 2**0.5)
    before = weight.detach().clone()
    moments = {k: v.clone() for k, v in optimizer.state[weight].items()}
    for value, slots in ((1.0, 0), (float("nan"), 4), (float("inf"), 4)):
        step(sums, weight, optimizer, module, value, slots)
    assert torch.equal(weight, before)
    for name, value in optimizer.state[weight].items():
        assert torch.equal(value, moments[name]), name
    assert sums.skipped == module.logged["train/skipped_steps"] == 3
    step(sums, weight, optimizer, module, 3.0, 4)
    assert not torch.equal(weight, before)
    assert sums.last["supervised"] == 4


def test_bad_steps_in_a_row_end_the_run(parts: Any) -> None:
    weight, optimizer, module = parts
    sums = StepSums(skip_non_finite=1)
    for value in (float("nan"), 3.0, float("nan")):  # never two in a row
        step(sums, weight, optimizer, module, value, 4)
    before = weight.detach().clone()
    with pytest.raises(NonFiniteLossError, match=r"not finite at step 7.*skip_non_finite"):
        step(sums, weight, optimizer, module, float("nan"), 4)
    assert torch.equal(weight, before)
    with pytest.raises(ValueError, match="skip_non_finite must be at least 0, got -1"):
        StepSums(-1)
