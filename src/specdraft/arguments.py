"""Words of a command line as people type them: hyphens, lists by repetition, flags without a value."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any


def option_words(function: Callable[..., Any], words: Sequence[str]) -> list[str]:
    """Rewrite words for jsonargparse, which wants ``--block_sizes=[4,8]`` and ``--profile=true``.

    Accepted besides: ``--block-sizes 4 8``, ``--block-sizes 4 --block-sizes 8``, ``--block-sizes=4,8``, ``--profile``.

    Args:
        function: The command, whose type hints tell lists and flags.
        words: Words behind the command's name.
    """
    hints = typing.get_type_hints(function)
    out: list[str] = []
    lists: dict[str, list[str]] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        hint = hints.get(name.replace("-", "_"))
        if not word.startswith("--") or hint is None:
            out.append(word)
            continue
        name = name.replace("-", "_")
        values = [value] if equals else []
        if _is_list(hint):
            while not equals and rest and not rest[0].startswith("--"):
                values.append(rest.pop(0))
            lists.setdefault(name, []).extend(values)
        elif hint is bool and not equals and (not rest or rest[0].startswith("--")):
            out.append(f"--{name}=true")
        else:
            out.append(f"--{name}={value}" if equals else f"--{name}")
    return out + [f"--{name}={_list(values, hints[name])}" for name, values in lists.items()]


def _is_list(hint: Any) -> bool:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return any(typing.get_origin(option) is list for option in options)


def _list(values: list[str], hint: Any) -> str:
    if values == ["null"]:
        return "null"
    if len(values) == 1 and values[0].startswith("["):
        return values[0]
    texts = "str" in str(hint)
    return "[" + ",".join(json.dumps(value) if texts else value for value in values) + "]"
