from __future__ import annotations

import sys
from pathlib import Path

import pytest
from corrector_world import World

sys.path.append(str(Path(__file__).parents[1] / "decoding"))  # its stubs


@pytest.fixture
def world():
    return World
