"""When the survival of a short block may be read off that of a long one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specdraft.objectives import FixedHorizon, MixedHorizon, Objective
from specdraft.tune.candidates import survival_is_nested


@pytest.mark.parametrize(
    ("inclusion", "train_drafter", "causal", "nested"),
    [
        (MixedHorizon(), True, False, True),
        (MixedHorizon(), False, False, False),  # only the corrector met them
        (FixedHorizon(), True, False, False),
        (FixedHorizon(), False, True, True),  # no slot sees a later one
    ],
)
def test_of_what_the_drafter_itself_was_trained_with(
    inclusion: Any, train_drafter: bool, causal: bool, nested: bool
) -> None:
    drafter = SimpleNamespace(block_size=8, first_slot=1, causal=causal)
    module: Any = SimpleNamespace(drafter=drafter, objective=Objective(inclusion), train_drafter=train_drafter)
    assert survival_is_nested(module) is nested
