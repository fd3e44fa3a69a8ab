"""Answers by the built-in batched engine, token by token what the target emits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jinja2 import TemplateError

from specdraft.commands import encode_messages
from specdraft.data.chat import Unusable, encode_conversation
from specdraft.decoding import Request, SamplingParams, autoregressive_decode
from specdraft.regenerate.conversations import Answer, Conversation


class Engine:
    """Answer conversations in groups, turn by turn, and each turn of a group as one batch.

    Args:
        target: The target, with its tokenizer.
        params: How tokens are drawn.
        max_new_tokens: Tokens per answer at most.
        concurrency: Requests in flight; a group is eight times as many rows.
        seed: Seed of the sampling.
        options: Further variables of the chat template.
    """

    def __init__(
        self,
        target: Any,
        params: SamplingParams,
        max_new_tokens: int,
        concurrency: int,
        seed: int = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.target = target
        self.params = params
        self.max_new_tokens = max_new_tokens
        self.concurrency = concurrency
        self.seed = seed
        self.options = options
        self.note = ""

    def answer(self, rows: Sequence[Conversation], done: int = 0) -> Iterator[list[Conversation]]:
        """Answer rows; yields each group once all its turns are answered, or refused.

        Args:
            rows: The rows, in the order of the groups.
            done: Number of rows answered or refused before, which seeds the groups.
        """
        size = 8 * self.concurrency
        for start in range(0, len(rows), size):
            group = list(rows[start : start + size])
            generator = torch.Generator(device=self.target.device).manual_seed(self.seed + done + start)
            while due := [(row, context) for row in group if (context := row.context()) is not None]:
                self._turn(due, generator)
            yield group

    def _turn(self, due: list[tuple[Conversation, list[dict[str, Any]]]], generator: torch.Generator) -> None:
        open_turns = [(row, said, ids) for row, said in due if (ids := self._prompt(row, said)) is not None]
        if not open_turns:
            return
        requests = [Request(ids, self.max_new_tokens, self.target.stop_token_ids) for *_, ids in open_turns]
        result = autoregressive_decode(
            self.target, requests, params=self.params, concurrency=self.concurrency, generator=generator
        )
        self.note = f"{result.tokens_per_second:.0f} tokens/s"
        for (row, said, ids), found in zip(open_turns, result.results, strict=True):
            row.answers.append(self._answer(row, said, ids, found.tokens))

    def _prompt(self, row: Conversation, said: list[dict[str, Any]]) -> list[int] | None:
        """Tokens before the next answer; None, and the reason noted in the row, if there can be none."""
        try:
            ids = encode_messages(self.target.tokenizer, said, row.options(self.options))
        except (TemplateError, TypeError, ValueError) as error:
            row.refused = f"it cannot be rendered as a prompt: {error}"
            return None
        if not ids:
            row.refused = "it has no tokens"
            return None
        spec = self.target.spec
        if len(ids) + self.max_new_tokens > spec.max_position_embeddings:
            row.refused = (
                f"it takes {len(ids)} tokens before answer {len(row.answers) + 1}; with max_new_tokens "
                f"{self.max_new_tokens} that exceeds the {spec.max_position_embeddings} positions of {spec.name!r}. "
                "Shorten the row or lower max_new_tokens"
            )
            return None
        return ids

    def _answer(self, row: Conversation, said: list[dict[str, Any]], prompt: list[int], tokens: list[int]) -> Answer:
        finished = bool(tokens) and tokens[-1] in self.target.stop_token_ids
        body = tokens[:-1] if finished else tokens
        text = self.target.tokenizer.decode(body, skip_special_tokens=True)
        return Answer(
            text,
            finished,
            list(tokens),
            not body or self._learnt_alike(said, prompt, tokens, text, row.options(self.options)),
        )

    def _learnt_alike(
        self,
        said: list[dict[str, Any]],
        prompt: list[int],
        tokens: list[int],
        text: str,
        options: dict[str, Any] | None = None,
    ) -> bool:
        """Whether training finds the answer's own tokens behind its own prompt, once the template has rendered both.

        Templates trim answers, strip thoughts from them or add empty ones.
        """
        tokenizer, stops = self.target.tokenizer, self.target.stop_token_ids
        if not tokenizer.chat_template:
            body = tokens[:-1] if tokens[-1] in stops else tokens
            return bool(tokenizer(text, add_special_tokens=False)["input_ids"] == body)
        whole = [*prompt, *tokens]
        try:
            encoded = encode_conversation(
                tokenizer,
                [*said, {"role": "assistant", "content": text}],
                max_length=len(whole) + 256,  # what the template writes behind
                min_labels=1,
                stop_token_ids=stops,
                options=options,
            )
        except Unusable:
            return False
        return encoded.input_ids[: len(whole)] == whole and all(encoded.loss_mask[len(prompt) : len(whole)])
