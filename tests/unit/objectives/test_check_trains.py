"""What would not train is known before the first step."""

from __future__ import annotations

import warnings

import pytest

from specdraft.objectives import AcceptedLength, MixedHorizon, Objective


def test_slots_that_no_horizon_reaches_are_refused() -> None:
    with pytest.raises(ValueError, match="largest horizon 8 is below the drafter's block size 16"):
        Objective(MixedHorizon([4, 8])).check_trains(16, 1, True)
    with pytest.raises(ValueError, match="horizon 8 is larger than the drafter's block size 4"):
        Objective(MixedHorizon([2, 8])).check_trains(4, 1, True)
    Objective(MixedHorizon([4, 8])).check_trains(8, 1, True)
    Objective(MixedHorizon([4, 8])).check_trains(16, 1, False)  # nothing of the drafter is trained
    Objective().check_trains(16, 1, True)
    # a curriculum that begins with short blocks and ends with long ones
    Objective(MixedHorizon([4, 16], [0.5, 0.5], [1.0, 0.0])).check_trains(16, 1, True)
    with pytest.raises(ValueError, match="largest horizon 4"):
        Objective(MixedHorizon([4, 16], [1.0, 0.0], [0.0, 1.0])).check_trains(16, 1, True)


def test_terms_beside_a_frozen_drafter_are_said_to_be_idle() -> None:
    objective = Objective(terms=[AcceptedLength()])
    with pytest.warns(UserWarning, match="AcceptedLength: terms train the drafter, which is frozen here"):
        objective.check_trains(8, 1, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective.check_trains(8, 1, True)
