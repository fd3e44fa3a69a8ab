"""Choice of the embedding row that fills undrafted slots."""

from __future__ import annotations

import re
from typing import Any

_RESERVED = re.compile(r"reserved|unused|extra_id", re.IGNORECASE)


def pick_mask_token(tokenizer: Any | None, rows: int) -> int:
    """An existing embedding row that does not occur in text.

    The first that exists of

    1. an added token whose content contains "mask" (Gemma's ``<mask>``);
    2. an added token whose content contains "reserved", "unused" or "extra_id" (Llama's 128002);
    3. the first row behind the tokenizer's last token: rows that only pad the matrix (Qwen3's 151669);
    4. the last special token that is neither the beginning or end of a sequence, padding or unknown, nor part of
       the chat template;
    5. the last row.

    Of 1 and 2 the lowest id is taken. Published drafters of these families use the same rows.

    Args:
        tokenizer: Tokenizer of transformers, or None when the target has none.
        rows: Rows of the embedding.
    """
    if tokenizer is None:
        return rows - 1
    added = {int(i): str(token.content) for i, token in tokenizer.added_tokens_decoder.items() if 0 <= int(i) < rows}
    used = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    spare = {i: content for i, content in sorted(added.items()) if i not in used}
    for wanted in (lambda content: "mask" in content.lower(), _RESERVED.search):
        for i, content in spare.items():
            if wanted(content):
                return i
    last = max(tokenizer.get_vocab().values(), default=-1)
    if last + 1 < rows:
        return last + 1
    template = str(getattr(tokenizer, "chat_template", None) or "")
    is_special = {int(i): bool(token.special) for i, token in tokenizer.added_tokens_decoder.items()}
    special = [i for i, content in spare.items() if is_special[i] and content not in template]
    return special[-1] if special else rows - 1
