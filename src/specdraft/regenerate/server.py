"""Client of an OpenAI-compatible server: one chat completion, asked again until the server is there."""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Sequence
from http.client import HTTPException
from threading import Event
from time import monotonic
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from specdraft.decoding import SamplingParams
from specdraft.regenerate.conversations import Answer

_AGAIN = {408, 409, 425, 429}  # besides all 5xx: the server is busy or restarting, the request may be fine
_OF_THE_REQUEST = {400, 413, 422}  # its content is refused, not who asks or where
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_SHOWN = 500


class ServerError(RuntimeError):
    """The server refused a request, or could not be reached for too long."""


class RowRefused(ServerError):
    """The server does not take this request, but may take others."""


class _Again(Exception):
    """A failure that may pass; ``wait`` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class _Refused(Exception):
    """The server does not take the request as it is; ``other`` where it may take another one."""

    def __init__(self, message: str, other: bool) -> None:
        super().__init__(message)
        self.other = other


class ChatServer:
    """Ask a server for the next message of a conversation.

    What comes back is text, not token ids: special tokens are lost, and tokenising the text may give other tokens than
    those that the server drew. A server that parses reasoning out of the answer is refused, because a drafter has to
    learn the whole output. The key of a server that wants one is read from ``OPENAI_API_KEY``.

    Args:
        endpoint: Address, such as ``http://host:8000``; without a path it is ``/v1`` below it.
        model: Name of the model as the server calls it.
        params: How tokens are drawn. All of it is sent, and a repetition penalty of 1, because servers fill in what is
            missing from the model's own generation settings; a field that a server refuses by name is left out from
            then on, with a warning, unless it is needed.
        max_new_tokens: Tokens per answer at most.
        timeout: Seconds without a byte from the server until a request is given up.
        patience: Seconds from a request's first failure until it is not repeated any more.
        first_wait: Seconds before the first repetition; doubles each time, up to 30, and each wait is drawn from its
            upper half, so that the clients of a restarted server do not all come at once.
        options: Further variables of the chat template.

    Raises:
        ValueError: If the endpoint is no web address, or a time is not positive.
    """

    def __init__(
        self,
        endpoint: str,
        model: str,
        params: SamplingParams,
        max_new_tokens: int,
        *,
        timeout: float = 600.0,
        patience: float = 600.0,
        first_wait: float = _FIRST_WAIT,
        options: dict[str, Any] | None = None,
    ) -> None:
        address = urlsplit(endpoint)
        if address.scheme not in ("http", "https") or not address.netloc:
            raise ValueError(f"endpoint {endpoint!r} is no address; give one such as http://localhost:8000")
        if timeout <= 0 or patience < 0:
            raise ValueError(f"timeout {timeout} must be positive and patience {patience} not negative")
        base = endpoint.rstrip("/") + ("" if address.path.strip("/") else "/v1")
        self.url = f"{base}/chat/completions"
        self.model = model
        self.params = params
        self.max_new_tokens = max_new_tokens
        self.timeout = timeout
        self.patience = patience
        self.first_wait = first_wait
        self.options = options
        self._closed = Event()
        self._unknown: set[str] = set()

    def close(self) -> None:
        """End the waits of all threads; their requests fail."""
        self._closed.set()

    def reply(self, messages: Sequence[dict[str, Any]], seed: int, tools: Sequence[dict[str, Any]] = ()) -> Answer:
        """The next message of a conversation.

        Args:
            messages: What was said.
            seed: Seed of the sampling, for a server that takes one.
            tools: Functions that are described to the model. The server is asked not to parse calls out of its answer.

        Raises:
            RowRefused: If the server refuses the content of the request, with what it said.
            ServerError: If it refuses the request for another reason, or fails for longer than ``patience``.
        """
        failures, began = 0, 0.0
        while True:
            try:
                fields = self._fields(messages, seed, tools)
                return _answer(self._post(json.dumps(fields).encode()))
            except _Refused as error:
                if not self._without(str(error), set(fields)):
                    kind = RowRefused if error.other else ServerError
                    raise kind(f"{self.url} refused the request: {error}") from error
            except _Again as error:
                began = began or monotonic()
                wait = max(error.wait, min(_LONGEST_WAIT, self.first_wait * 2**failures) * random.uniform(0.5, 1.0))
                failures += 1
                gone = monotonic() - began
                if gone + wait > self.patience or self._closed.wait(wait):
                    raise ServerError(
                        f"{self.url} gave no answer in {failures} tries within {gone:.0f} s; the last time: {error}"
                    ) from error

    def _fields(self, messages: Sequence[dict[str, Any]], seed: int, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        params = self.params
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": self.max_new_tokens,
            "temperature": params.temperature,
            "stream": False,
        }
        if params.greedy:
            fields |= {"top_p": 1.0, "repetition_penalty": 1.0}
        else:
            fields |= {"seed": seed, "top_p": params.top_p, "top_k": params.top_k or -1, "repetition_penalty": 1.0}
        if tools:
            fields |= {"tools": list(tools), "tool_choice": "none"}
        if self.options:
            fields["chat_template_kwargs"] = self.options
        return {name: value for name, value in fields.items() if name not in self._unknown}

    def _without(self, said: str, sent: set[str]) -> bool:
        """Whether the request may be repeated without fields that were sent and that the server named."""
        optional = {"repetition_penalty"} | (set() if self.params.top_k else {"top_k"})
        named = {name for name in optional & sent if name in said}
        if new := named - self._unknown:
            self._unknown |= new
            warnings.warn(
                f"{self.url} does not take {', '.join(sorted(new))}: see to it that the server does not fill in the "
                "model's own generation settings (vLLM: --generation-config vllm)",
                stacklevel=2,
            )
        return bool(named)

    def _post(self, body: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        try:
            with urlopen(Request(self.url, body, headers), timeout=self.timeout) as response:
                return json.loads(response.read())
        except HTTPError as error:
            said = f"HTTP {error.code} {error.reason}: {_said(error)}"
            if error.code in _AGAIN or error.code >= 500:
                raise _Again(said, _seconds(error.headers.get("Retry-After"))) from error
            raise _Refused(said, error.code in _OF_THE_REQUEST) from error
        except (OSError, HTTPException, ValueError) as error:  # refused, reset, timed out, or cut in the middle
            raise _Again(f"{type(error).__name__}: {error}") from error


def _answer(reply: Any) -> Answer:
    try:
        choice = reply["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        text = message["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise _Again(f"a reply without choices[0].message.content: {str(reply)[:_SHOWN]}") from error
    if message.get("reasoning_content") or message.get("reasoning"):
        raise ServerError(
            "the server parsed the reasoning out of the answer; start it without a reasoning parser, so that a drafter "
            "learns the whole output"
        )
    if message.get("tool_calls") or reason == "tool_calls":
        raise ServerError("the server parsed a call out of the answer; start it without a parser of tool calls")
    if not isinstance(text, str):
        raise ServerError(f"the server's answer holds no text: {str(message)[:_SHOWN]}")
    if reason not in ("stop", "length"):
        raise _Again(f"finish_reason {reason!r}, not 'stop' or 'length'")
    return Answer(text, finished=reason == "stop")


def _said(error: HTTPError) -> str:
    try:
        return error.read().decode(errors="replace")[:_SHOWN]
    except (OSError, HTTPException):
        return "(the rest was cut off)"


def _seconds(value: str | None) -> float:
    """A ``Retry-After`` in seconds; its form as a date is left to the own waits."""
    return min(float(value), _LONGEST_WAIT) if value and value.isdigit() else 0.0
