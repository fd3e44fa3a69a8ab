"""Rates of the training: counted over all accumulated batches, validation left out, waits for data apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import specdraft.callbacks.training_throughput as subject
from specdraft.callbacks import TrainingThroughput
from specdraft.correctors import DCOCO, NoCorrector
from specdraft.drafters import DFlash
from specdraft.estimate import StepShape, step_cost
from specdraft.estimate.work import StepWork
from specdraft.module import DraftingModule
from specdraft.targets import TargetConfig
from specdraft.types import TargetSpec

SPEC = TargetSpec("toy", 64, 512, 8, 4, 2, 16, 128)


class Clock:
    """Moves only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(subject, "time", clock)
    return clock


def test_rates_leave_validation_out_and_show_waits_apart(clock: Clock) -> None:
    logged: list[dict[str, float]] = []
    module: Any = SimpleNamespace(
        step_sums=SimpleNamespace(last={}),
        log_dict=lambda values: logged.append({name: float(value) for name, value in values.items()}),
    )
    trainer: Any = SimpleNamespace(
        global_step=0, log_every_n_steps=2, world_size=2, train_dataloader=SimpleNamespace(waited=5.0), datamodule=None
    )
    batch = SimpleNamespace(input_ids=torch.zeros(3, 10))
    callback = TrainingThroughput()
    callback.on_train_start(trainer, module)

    def run_batch(stepped: bool) -> None:
        clock.now += 1.5
        trainer.train_dataloader.waited += 0.5
        if stepped:
            trainer.global_step += 1
            sums = {"tokens": 300.0, "anchors": 30.0, "supervised": 90.0}
            module.step_sums.last = {name: torch.tensor(value) for name, value in sums.items()}
        callback.on_train_batch_end(trainer, module, None, batch, 0)

    run_batch(False)
    run_batch(True)
    callback.on_validation_start(trainer, module)
    clock.now += 1000.0
    callback.on_validation_end(trainer, module)
    run_batch(False)
    assert not logged
    run_batch(True)
    assert logged == [
        {
            "train/tokens_per_second": 100.0,
            "train/anchors_per_second": 10.0,
            "train/supervised_slots_per_second": 30.0,
            "train/step_ms": 3000.0,
            "train/data_ms": 1000.0,
        }
    ]
    run_batch(True)
    clock.now += 1.5
    run_batch(True)
    assert logged[1]["train/step_ms"] == pytest.approx(2250.0)
    assert logged[1]["train/data_ms"] == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("corrector", "tolerance"),
    [(NoCorrector, 1e-6), (lambda spec: DCOCO(spec, 4), 0.05)],  # how many candidates differ does not grow in line
    ids=["none", "dcoco"],
)
def test_work_is_that_of_the_estimate_at_other_sizes(corrector: Any, tolerance: float) -> None:
    def module() -> DraftingModule:
        return DraftingModule(TargetConfig("toy"), lambda spec: DFlash(spec, num_layers=2, block_size=4), corrector)

    running = module()
    running._target = SimpleNamespace(spec=SPEC)  # type: ignore[assignment]
    work = StepWork.of(running, online=False)
    assert running.drafter is None  # it was left as it is
    real = step_cost(module(), SPEC, StepShape(3, 200, 37, torch.float32, None, "cpu")).flops
    assert work.flops(600, 3 * 37, 200) == pytest.approx(real, rel=tolerance)
    # a causal target adds twice its parameters per token below the last tap
    online = StepWork.of(running, online=True)
    attention, mlp = 2 * 64 * 64 + 2 * 64 * 32, 3 * 64 * 128
    layers = max(SPEC.taps) + 1
    assert online.per_token - work.per_token == pytest.approx(2 * layers * (attention + mlp))


def test_peak_must_be_positive() -> None:
    with pytest.raises(ValueError, match="peak_tflops must be positive, got 0"):
        TrainingThroughput(peak_tflops=0)
