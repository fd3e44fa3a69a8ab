"""Rows of training data: one conversation each, whatever form it was written in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specdraft.data.sources import read_records

ROLES = ("system", "developer", "user", "assistant", "tool")
_SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
}


@dataclass(frozen=True)
class Row:
    """One conversation.

    Attributes:
        id: Name of the row: the field ``id``, or a hash of the content, so that equal rows have equal names.
        family: Kind of prompt, for metrics by family; empty when unknown.
        messages: ``{"role": ..., "content": ...}`` as chat templates read them.
        where: Place in the source, for messages.
        plain: Whether the row was written as ``prompt`` and ``response``, which needs no chat template.
        prompt_ids: Exact tokens up to the last response, or None to render the text.
        response_ids: Exact tokens of the last response, or None to render the text.
        finished: Whether the model ended the last response by itself, not a length limit.
        tools: Descriptions of the functions that the model may call, as chat templates read them.
    """

    id: str
    family: str
    messages: tuple[dict[str, Any], ...]
    where: str
    plain: bool = False
    prompt_ids: tuple[int, ...] | None = None
    response_ids: tuple[int, ...] | None = None
    finished: bool = True
    tools: tuple[dict[str, Any], ...] = ()


def read_rows(
    sources: str | Iterable[str], part: Literal["train", "heldout"] = "train", folder: Path | None = None
) -> Iterator[Row]:
    """Read the rows of one or several sources, in their order.

    Three forms are understood: ``messages`` (role and content), ``conversations`` (ShareGPT: from and value), and
    ``prompt`` with ``response`` (strings). Optional fields: ``id``, ``family``, and ``prompt_ids`` with
    ``response_ids``, the exact tokens that a server read and generated, which win over the text. ``finished: false``
    marks a response that a length limit cut, so that its end is not learned as the end of a turn. ``tools`` (a list, or
    one written as JSON) are the functions that the chat template describes to the model.

    Args:
        sources: See :func:`specdraft.data.sources.read_records`.
        part: Which packaged file a packaged name means.
        folder: Folder of the packaged files.

    Raises:
        ValueError: If a row has none of these forms, naming its file and line.
    """
    for source in [sources] if isinstance(sources, str) else sources:
        for where, value in read_records(source, part, folder):
            yield parse_row(value, where)


def parse_row(value: Any, where: str) -> Row:
    """Check one decoded row and bring it into the common form.

    Args:
        value: The decoded row.
        where: Its place, for messages.

    Raises:
        ValueError: If a field is missing, has the wrong type or an unknown role.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where}: a row must be an object, got {type(value).__name__}")
    prompt_ids, response_ids = (_token_ids(value.get(name), name, where) for name in ("prompt_ids", "response_ids"))
    plain = False
    if value.get("messages") is not None:
        messages = _messages(value["messages"], where)
    elif value.get("conversations") is not None:
        messages = _sharegpt(value["conversations"], where)
    elif value.get("prompt") is not None:
        messages, plain = _prompt_response(value, where), True
    elif prompt_ids is not None and response_ids is not None:
        messages = ()
    else:
        known = ", ".join(sorted(map(str, value))) or "none"
        raise ValueError(
            f"{where}: a row needs 'messages', 'conversations', or 'prompt' and 'response'; it has the fields {known}"
        )
    if prompt_ids is not None and response_ids is None:
        raise ValueError(f"{where}: 'prompt_ids' needs 'response_ids' beside it")
    family = value.get("family")
    if family is not None and not isinstance(family, str):
        raise ValueError(f"{where}: 'family' must be a string, got {family!r}")
    tools = parse_tools(value.get("tools"), where)
    name = value.get("id")
    if name is None:
        content = json.dumps([messages, prompt_ids, response_ids, *tools], sort_keys=True, default=str)
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
    finished = value.get("finished", True)
    if not isinstance(finished, bool):
        raise ValueError(f"{where}: 'finished' must be true or false, got {finished!r}")
    return Row(str(name), family or "", messages, where, plain, prompt_ids, response_ids, finished, tools)


def parse_tools(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    """The functions that a row offers to the model; none where the field is absent.

    Args:
        value: List of objects, or such a list as JSON, which Parquet files hold because the objects differ.
        where: Place of the row, for messages.

    Raises:
        ValueError: If it is neither.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: 'tools' is a text, but not JSON ({error}); write a list of objects") from error
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError(f"{where}: 'tools' must be a list of objects, got {value!r}")
    return tuple(value)


def _messages(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: 'messages' must be a list, got {type(value).__name__}")
    out = []
    for index, message in enumerate(value):
        if not isinstance(message, dict) or "role" not in message:
            raise ValueError(f"{where}: message {index} must be an object with 'role' and 'content', got {message!r}")
        if message["role"] not in ROLES:
            raise ValueError(
                f"{where}: message {index} has the unknown role {message['role']!r}; use {', '.join(ROLES)}"
            )
        # Parquet writes absent keys as null; a template must see them as absent
        clean = {key: item for key, item in message.items() if item is not None}
        clean.setdefault("content", "")  # an assistant turn that only calls tools
        if "content" not in message and not message.get("tool_calls"):
            raise ValueError(f"{where}: message {index} has no 'content'")
        if not isinstance(clean["content"], (str, list)):
            raise ValueError(f"{where}: 'content' of message {index} must be a string, got {clean['content']!r}")
        out.append(clean)
    return tuple(out)


def _sharegpt(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: 'conversations' must be a list, got {type(value).__name__}")
    out = []
    for index, turn in enumerate(value):
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str) or "from" not in turn:
            raise ValueError(f"{where}: turn {index} must be an object with 'from' and 'value' (string), got {turn!r}")
        if turn["from"] not in _SHAREGPT:
            raise ValueError(f"{where}: turn {index} is from {turn['from']!r}; use {', '.join(_SHAREGPT)}")
        out.append({"role": _SHAREGPT[turn["from"]], "content": turn["value"]})
    return tuple(out)


def _prompt_response(value: dict[str, Any], where: str) -> tuple[dict[str, Any], ...]:
    prompt, response = value["prompt"], value.get("response")
    if not isinstance(prompt, str):
        raise ValueError(f"{where}: 'prompt' must be a string, got {type(prompt).__name__}; write turns as 'messages'")
    if response is None and "response" not in value and value.get("response_ids") is None:
        raise ValueError(f"{where}: 'prompt' without 'response'; regenerate responses with the target first")
    if response is not None and not isinstance(response, str):
        raise ValueError(f"{where}: 'response' must be a string, got {type(response).__name__}")
    return ({"role": "user", "content": prompt}, {"role": "assistant", "content": response or ""})


def _token_ids(value: Any, name: str, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise ValueError(f"{where}: {name!r} must be a list of token ids")
    return tuple(value)
