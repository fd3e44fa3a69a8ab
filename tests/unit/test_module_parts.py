"""What the module gives to optimiser, schedule and corrector."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR

from specdraft.data import ChatDataModule
from specdraft.data.tokens import Examples, TokenisedRows, collate
from specdraft.drafters import DFlash
from specdraft.module import DraftingModule
from specdraft.objectives import KLDivergence, Objective
from specdraft.targets import TargetConfig, load_target


@pytest.fixture(scope="module")
def target(tiny_target):
    return load_target(str(tiny_target), taps=[0, 2])


def build(target, **options: Any) -> DraftingModule:
    made = DraftingModule(
        TargetConfig("tiny"),
        lambda spec: DFlash(spec, num_layers=1, block_size=4),
        matmul_precision="highest",
        **options,
    )
    made.target = target
    made._build([])
    return made


def trainer(steps: float, **options: Any) -> Any:
    plugin = SimpleNamespace(scaler=options.pop("scaler", None))
    return SimpleNamespace(
        estimated_stepping_batches=steps, ckpt_path=None, precision_plugin=plugin, global_step=5, **options
    )


def test_run_without_a_known_length(target):
    module = build(target)
    module._trainer = trainer(math.inf)
    with pytest.raises(ValueError, match=r"finite run, got inf steps: set trainer\.max_steps"):
        module.configure_optimizers()
    module.make_scheduler = lambda optimizer, steps: ConstantLR(optimizer)
    module.configure_optimizers()
    module.train()
    assert module.training_fraction == 0.0


def test_fused_optimizer_under_a_loss_scale(target):
    fused = lambda parameters: torch.optim.AdamW(parameters, fused=True)  # noqa: E731
    module = build(target, optimizer=fused)
    module._trainer = trainer(10, scaler=object(), precision="16-mixed")
    with pytest.raises(ValueError, match=r"fused AdamW .* 16-mixed.*bf16-mixed"):
        module.configure_optimizers()
    module._trainer = trainer(10, precision="bf16-mixed")
    optimizer = module.configure_optimizers()["optimizer"]
    assert not optimizer._step_supports_amp_scaling  # Lightning asks it before it clips


@pytest.mark.parametrize("soft", [False, True])
def test_hidden_states_that_a_cache_happens_to_hold(target, soft):
    module = build(target, objective=Objective(prediction=KLDivergence()) if soft else None)
    rows = TokenisedRows()
    rows.append("r", "", list(range(5, 17)), [True] * 12)
    batch = collate([Examples(rows)[0]])
    out = target.features(batch.input_ids, batch.position_ids, batch.document_ids, last_hidden=True)
    batch.features, batch.last_hidden = out.features, out.hidden
    given = module._with_features(batch).last_hidden
    assert (given is out.hidden) if soft else (given is None)


def test_parts_take_the_seed_of_the_run_unless_they_have_their_own(target, monkeypatch):
    assert (build(target).seed, ChatDataModule("chats").seed) == (0, 0)
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")  # as seed_everything sets it
    assert (build(target).seed, ChatDataModule("chats").seed) == (7, 7)
    assert (build(target, seed=0).seed, ChatDataModule("chats", seed=3).seed) == (0, 3)
