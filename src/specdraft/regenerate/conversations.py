"""Rows to be answered: where the target speaks, and what the row is once it has spoken."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdraft.commands import prompt_rows
from specdraft.data.evaluation_sets import EVALUATION_SETS
from specdraft.data.rows import parse_row, parse_tools
from specdraft.data.sources import Record, read_records

Message = dict[str, Any]
# what an earlier answer left in a row; none of it is true of another answer
_OF_AN_ANSWER = ("response", "response_ids", "prompt_ids", "finished", "unanswered", "conversations")


@dataclass(frozen=True)
class Answer:
    """What the target said in one turn.

    Attributes:
        text: The text without special tokens.
        finished: Whether the target ended it by itself, not the length limit.
        ids: Its tokens, or None where they are not known.
        exact: Whether tokenising the text gives the tokens back.
    """

    text: str
    finished: bool = True
    ids: list[int] | None = None
    exact: bool = True


@dataclass
class Conversation:
    """A row and the answers that it has got so far.

    Attributes:
        row: The row as it was read.
        script: Its messages; None stands where the target answers.
        plain: Whether the row is a ``prompt`` that gets a ``response``.
        answers: Answers so far, in order.
        tools: Functions that the row offers to the target.
        refused: Why no further answer is possible; empty while one is.
    """

    row: dict[str, Any]
    script: list[Message | None]
    plain: bool
    answers: list[Answer] = field(default_factory=list)
    tools: tuple[dict[str, Any], ...] = ()
    refused: str = ""

    @property
    def name(self) -> str:
        """The row's ``id`` or the start of what it asks."""
        return str(self.row.get("id") or self._asked()[:40])

    def options(self, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Variables of the chat template: ``options``, and the row's tools."""
        return {**(options or {}), "tools": list(self.tools)} if self.tools else options

    @property
    def key(self) -> str:
        """The ``id``, if there is one, and a digest of what is asked, so that a changed prompt is another row."""
        digest = hashlib.sha256(self._asked().encode()).hexdigest()[:16]
        return f"{self.row.get('id', '')}:{digest}"

    def context(self) -> list[Message] | None:
        """Messages up to the next answer, or None if no further one is due.

        An answer that the length limit cut ends the conversation: the target has not ended that turn, so what follows
        would teach a drafter an end where the target makes none.
        """
        if self.refused or (self.answers and not self.answers[-1].finished):
            return None
        gaps = self._gaps()
        if len(self.answers) == len(gaps):
            return None
        return self._filled(self.script[: gaps[len(self.answers)]])

    def answered(self) -> dict[str, Any]:
        """The row with its answers: ``response`` beside a ``prompt``, else ``messages``.

        ``finished`` is false where the limit cut the last answer; the user's later turns are then in ``unanswered``.
        Where a text does not give its tokens back, ``response_ids`` holds those of the last answer, and it alone is
        learned from the row. In both cases nothing stands behind the last answer, so that its end is the row's.
        """
        last = self.answers[-1]
        exact = last.ids is None or all(answer.exact for answer in self.answers)
        out = {name: value for name, value in self.row.items() if name not in _OF_AN_ANSWER}
        if self.plain:
            out["response"] = last.text
        else:
            gaps = self._gaps()
            whole = len(self.answers) == len(gaps) and last.finished and exact
            # what the source says behind the last of all answers stays: calls of tools
            end = len(self.script) if whole else gaps[len(self.answers) - 1] + 1
            out["messages"] = self._filled(self.script[:end])
            if later := [message for message in self.script[end:] if message is not None]:
                out["unanswered"] = later
        if not last.finished:
            out["finished"] = False
        if not exact:
            out["response_ids"] = last.ids
        return out

    def _asked(self) -> str:
        if self.plain and not self.tools:
            return str(self.row["prompt"])
        said = [message for message in self.script if message is not None]
        return json.dumps([*said, *self.tools], sort_keys=True, default=str)

    def _gaps(self) -> list[int]:
        return [place for place, message in enumerate(self.script) if message is None]

    def _filled(self, script: Sequence[Message | None]) -> list[Message]:
        """The messages of a part of the script that begins with it, with answers in their places."""
        answers = iter(self.answers)
        return [{"role": "assistant", "content": next(answers).text} if m is None else m for m in script]


def conversation(row: Any, where: str) -> Conversation:
    """What is to be answered in a row.

    Args:
        row: ``messages``, ``conversations`` (ShareGPT), ``turns`` (texts of the user) or ``prompt``, in this order.
        where: Place of the row, for messages.

    Raises:
        ValueError: If the row has none of these, or nobody asks in it.
    """
    tools = parse_tools(row.get("tools"), where) if isinstance(row, dict) else ()
    if isinstance(row, dict) and (row.get("messages") is not None or row.get("conversations") is not None):
        messages = [*parse_row(row, where).messages, *(row.get("unanswered") or [])]
        script = script_of(messages)
        if None not in script:
            raise ValueError(
                f"{where}: no turn of a user or a tool waits for an answer of the target in this row; leave it out"
            )
        return Conversation(row, script, plain=False, tools=tools)
    turns = row.get("turns") if isinstance(row, dict) else None
    if turns and isinstance(turns, list) and all(isinstance(turn, str) for turn in turns):
        row = {"prompt": turns[0], **row}
        if len(turns) > 1:
            return Conversation(row, script_of([_user(turn) for turn in turns]), plain=False, tools=tools)
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise ValueError(f"{where}: a row needs 'messages', 'turns' (a list of texts) or 'prompt' (a text)")
    if not row["prompt"].strip():
        raise ValueError(f"{where}: the prompt is empty")
    return Conversation(row, [_user(row["prompt"]), None], plain=True, tools=tools)


def script_of(messages: Sequence[Message]) -> list[Message | None]:
    """The messages with None where the target answers: behind each turn of the user, and behind results of tools.

    Answers of the source are left out, for the target's own take their place. Kept are an assistant's message before
    anybody asked, and calls of tools, because their results stand in the row.
    """
    out: list[Message | None] = []
    due = asked = False
    for message in messages:
        if message["role"] == "assistant":
            if message.get("tool_calls") or not asked:
                out.append(message)
                due = False
            elif due:
                out.append(None)
                due = False
            continue
        if message["role"] == "user" and due:
            out.append(None)
        out.append(message)
        due = due or message["role"] in ("user", "tool")
        asked = asked or due
    return [*out, None] if due else out


def read_conversations(prompts: str, limit: int | None = None) -> dict[str, Conversation]:
    """Rows to answer, by key, in their order.

    Args:
        prompts: ``embedded:train``, ``embedded:heldout``, an evaluation set, a file or a data set of the hub.
        limit: Most rows.

    Raises:
        FileNotFoundError: If there is no such source.
        ValueError: If two rows are one, or one cannot be answered, naming it.
    """
    out: dict[str, Conversation] = {}
    named = prompts.startswith("embedded:") or prompts.partition("=")[0] in EVALUATION_SETS
    records: Iterable[Record]
    if not named and (Path(prompts).is_file() or "/" in prompts):
        records = read_records(prompts)
    else:
        records = ((f"{prompts}[{number}]", row) for number, row in enumerate(prompt_rows(prompts), 1))
    for number, (where, row) in enumerate(records, 1):
        if limit is not None and number > limit:
            break
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:  # or it would fail once it is answered
            raise ValueError(
                f"{where}: the row cannot be written as JSON ({error}); leave the field out or convert it"
            ) from error
        found = conversation(row, where)
        if found.key in out:
            raise ValueError(f"{prompts}: row {number} ({found.name!r}) occurs twice; keep it once")
        out[found.key] = found
    return out


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
