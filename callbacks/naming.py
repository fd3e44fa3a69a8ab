"""Names of what was decoded, where one run decodes in several ways."""

from __future__ import annotations

import re
from collections.abc import Mapping


def check_name(name: str) -> str:
    """The name, if values and files can bear it.

    Raises:
        ValueError: If not.
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name) or name in ("train", "val", "test"):
        raise ValueError(f"name must be a word other than train, val and test, such as 'sampled', got {name!r}")
    return name


def renamed(values: Mapping[str, float], name: str) -> dict[str, float]:
    """Values under ``name/`` instead of ``decode/``."""
    return {name + key.removeprefix("decode"): value for key, value in values.items()}
