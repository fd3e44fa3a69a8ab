"""Requests of prompts whose user speaks more than once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdraft.commands import encode_messages, encode_prompt
from specdraft.decoding import Request, autoregressive_decode

Row = dict[str, Any]


def requests_of(
    target: Any,
    rows: Sequence[Row],
    max_new_tokens: int,
    concurrency: int,
    options: dict[str, Any] | None = None,
) -> list[Request]:
    """A request per turn, in the order of the rows.

    The answers before a later turn are the target's own greedy ones, decoded here once, so that every method gets the
    same requests; a lossless method would have given the same answers at temperature 0.

    Args:
        target: The target, with its tokenizer.
        rows: Rows with ``prompt`` and possibly ``turns``, a list of texts that begins with it.
        max_new_tokens: Tokens per answer at most.
        concurrency: Answers decoded at a time.
        options: Further variables of the chat template.

    Returns:
        The requests; the workload of each is the ``family`` of its row, or ``all``.
    """
    encode, stops = target.tokenizer, target.stop_token_ids
    families = [str(row.get("family") or "all") for row in rows]
    found = [
        [Request(encode_prompt(encode, row["prompt"], options), max_new_tokens, stops, family)]
        for row, family in zip(rows, families, strict=True)
    ]
    said = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    turns = [list(row.get("turns") or [row["prompt"]]) for row in rows]
    for turn in range(2, max(map(len, turns), default=1) + 1):
        going = [place for place, texts in enumerate(turns) if len(texts) >= turn]
        asked = [found[place][-1] for place in going]
        answers = autoregressive_decode(target, asked, concurrency=min(concurrency, len(asked))).results
        for place, answer in zip(going, answers, strict=True):
            text = encode.decode([token for token in answer.tokens if token not in stops], skip_special_tokens=True)
            said[place] += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": turns[place][turn - 1]},
            ]
            ids = encode_messages(encode, said[place], options)
            found[place].append(Request(ids, max_new_tokens, stops, families[place]))
    return [request for own in found for request in own]
