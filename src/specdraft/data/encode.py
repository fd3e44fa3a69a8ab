"""Rows to tokens: which encoding a row needs, and counting those that cannot be supervised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from specdraft.data.chat import (
    Encoded,
    Unusable,
    encode_conversation,
    encode_ids,
    encode_plain,
    render,
    without_end_of_turn,
)
from specdraft.data.rows import Row
from specdraft.data.tokens import TokenisedRows


class RowEncoder:
    """Encode rows with one tokenizer, and count what was left out.

    Args:
        tokenizer: A tokenizer of transformers.
        max_length: Most tokens of a row.
        min_length: Fewest tokens of a row.
        min_labels: Fewest supervised tokens of a row.
        stop_token_ids: Tokens at which the target stops.
        vocab_size: Rows of the target's embedding; larger ids are refused (None: not checked).
        options: Further variables of the chat template.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_length: int,
        min_length: int = 1,
        min_labels: int = 2,
        stop_token_ids: Sequence[int] = (),
        vocab_size: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.min_length = min_length
        self.min_labels = min_labels
        self.stop_token_ids = tuple(stop_token_ids)
        self.vocab_size = vocab_size
        self.options = options
        self._warned = False

    def encode(self, row: Row) -> Encoded:
        """Tokens and loss mask of one row.

        Raises:
            Unusable: If the row cannot be supervised, with the reason.
            ValueError: If no row of this kind can be encoded with this tokenizer.
        """
        limits = {"max_length": self.max_length, "min_labels": self.min_labels}
        if row.response_ids is not None:
            prompt = self.prompt(row)
            encoded = encode_ids(prompt, row.response_ids, stop_token_ids=self.stop_token_ids, **limits)
        elif row.plain and not self.tokenizer.chat_template:
            self._warn_once()
            prompt_text, response = (message["content"] for message in row.messages)
            encoded = encode_plain(self.tokenizer, prompt_text, response, **limits)
        else:
            encoded = encode_conversation(
                self.tokenizer, row.messages, stop_token_ids=self.stop_token_ids, options=self._options(row), **limits
            )
        if not row.finished and row.response_ids is None:
            encoded = without_end_of_turn(encoded, self.stop_token_ids, self.tokenizer)
        self._check(encoded, row)
        return encoded

    def prompt(self, row: Row) -> list[int]:
        """Tokens of a row up to where its last response starts.

        Raises:
            Unusable: If the template refuses the conversation or there is no prompt.
        """
        if row.prompt_ids is not None:
            return list(row.prompt_ids)
        turns = [i for i, message in enumerate(row.messages) if message["role"] == "assistant"]
        before = row.messages[: turns[-1]] if turns else row.messages
        if not before:
            raise Unusable("no prompt")
        if row.plain and not self.tokenizer.chat_template:
            self._warn_once()
            return list(self.tokenizer(before[0]["content"])["input_ids"])
        return render(self.tokenizer, before, True, self._options(row))

    def encode_all(self, rows: Iterable[Row], name: str) -> TokenisedRows:
        """Encode rows, leave out those that cannot be supervised, and say how many and why.

        Args:
            rows: The rows.
            name: Name of the split, for messages.

        Raises:
            ValueError: If no row of some source can be supervised, or one cannot be encoded at all, naming it.
        """
        out = TokenisedRows()
        reasons: Counter[str] = Counter()
        first: dict[str, str] = {}
        kept: Counter[str] = Counter()
        rewritten = 0
        for row in rows:
            source = _source(row.where)
            kept[source] += 0
            try:
                encoded = self.encode(row)
            except Unusable as error:
                reasons[error.reason] += 1
                first.setdefault(error.reason, f"{row.where}: {error}")
                first.setdefault(source, f"{row.where}: {error}")
                continue
            except (TypeError, ValueError) as error:
                if row.where in str(error):
                    raise
                raise ValueError(f"{row.where}: the row cannot be encoded: {error}") from error
            kept[source] += 1
            rewritten += encoded.context_turns
            out.append(row.id, row.family, encoded.input_ids, encoded.loss_mask)
        for source, count in kept.items():
            if not count:
                raise ValueError(f"no row of {source} can be supervised; the first: {first[source]}")
        total = sum(kept.values()) + sum(reasons.values())
        if reasons:
            why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
            shown = "; ".join(first[reason] for reason in reasons)
            rank_zero_warn(f"{name}: kept {len(out):,} of {total:,} rows: {why}. The first of each: {shown}")
        else:
            rank_zero_info(f"{name}: kept all {total:,} rows")
        if rewritten:
            rank_zero_info(
                f"{name}: {rewritten:,} earlier assistant turns are context only, because the chat template rewrites "
                "them once the conversation goes on"
            )
        return out

    def _options(self, row: Row) -> dict[str, Any] | None:
        return {**(self.options or {}), "tools": list(row.tools)} if row.tools else self.options

    def _check(self, encoded: Encoded, row: Row) -> None:
        if len(encoded.input_ids) < self.min_length:
            raise Unusable("too short", f"{len(encoded.input_ids)} of {self.min_length} tokens")
        labels = sum(encoded.loss_mask)
        if labels < self.min_labels:
            raise Unusable("too few labels", f"{labels} of {self.min_labels}")
        if self.vocab_size is not None and max(encoded.input_ids) >= self.vocab_size:
            raise ValueError(
                f"{row.where}: token {max(encoded.input_ids)} is outside the target's vocabulary of {self.vocab_size}; "
                "the tokenizer or the recorded ids belong to another model"
            )

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            rank_zero_warn(
                "the tokenizer has no chat template: rows are read as plain text, prompt + response + end of sequence"
            )


def _source(where: str) -> str:
    """The file or data set of a place such as ``train.jsonl:12`` or ``train.json[3]``."""
    return where[: where.rindex("[")] if where.endswith("]") else where[: where.rindex(":")]
