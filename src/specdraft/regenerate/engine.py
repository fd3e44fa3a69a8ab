"""Answers by the built-in batched engine, token by token what the target emits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

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
        """Answer rows; yields each group once all its turns are answered.

        Args:
            rows: The rows, in the order of the groups.
            done: Number of rows answered before, which seeds the groups.
        """
        size = 8 * self.concurrency
        for start in range(0, len(rows), size):
            group = list(rows[start : start + size])
            generator = torch.Generator(device=self.target.device).manual_seed(self.seed + done + start)
            while due := [(row, context) for row in group if (context := row.context()) is not None]:
                self._turn(due, generator)
            yield group

    def _turn(self, due: list[tuple[Conversation, list[dict[str, Any]]]], generator: torch.Generator) -> None:
        tokenizer, stops = self.target.tokenizer, self.target.stop_token_ids
        requests = [
            Request(encode_messages(tokenizer, said, self.options), self.max_new_tokens, stops) for _, said in due
        ]
        limit = self.target.spec.max_position_embeddings
        for (row, _), request in zip(due, requests, strict=True):
            if len(request.prompt_ids) + self.max_new_tokens > limit:
                raise ValueError(
                    f"row {row.name!r} takes {len(request.prompt_ids)} tokens before answer {len(row.answers) + 1}; "
                    f"with max_new_tokens {self.max_new_tokens} that exceeds the {limit} positions of "
                    f"{self.target.spec.name!r}. Shorten the row or lower max_new_tokens"
                )
        result = autoregressive_decode(
            self.target, requests, params=self.params, concurrency=self.concurrency, generator=generator
        )
        self.note = f"{result.tokens_per_second:.0f} tokens/s"
        for (row, said), request, found in zip(due, requests, result.results, strict=True):
            row.answers.append(self._answer(said, list(request.prompt_ids), found.tokens))

    def _answer(self, said: list[dict[str, Any]], prompt: list[int], tokens: list[int]) -> Answer:
        finished = bool(tokens) and tokens[-1] in self.target.stop_token_ids
        body = tokens[:-1] if finished else tokens
        text = self.target.tokenizer.decode(body, skip_special_tokens=True)
        return Answer(text, finished, list(tokens), not body or self._learnt_alike(said, prompt, tokens, text))

    def _learnt_alike(self, said: list[dict[str, Any]], prompt: list[int], tokens: list[int], text: str) -> bool:
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
                options=self.options,
            )
        except Unusable:
            return False
        return encoded.input_ids[: len(whole)] == whole and all(encoded.loss_mask[len(prompt) : len(whole)])
