from __future__ import annotations

import pytest
from tokenizers import AddedToken

from specdraft.targets.mask_token import pick_mask_token


class Tokenizer:
    """Only what the rule reads: 10 ordinary tokens and some added ones behind them."""

    bos_token_id = eos_token_id = pad_token_id = unk_token_id = None
    chat_template = "<|user|>"

    def __init__(self, *added, **attributes):
        tokens = [AddedToken(text, special=True) if isinstance(text, str) else text for text in added]
        self.added_tokens_decoder = {10 + i: token for i, token in enumerate(tokens)}
        self.__dict__.update(attributes)

    def get_vocab(self):
        return {**{str(i): i for i in range(10)}, **{t.content: i for i, t in self.added_tokens_decoder.items()}}


@pytest.mark.parametrize(
    ("tokenizer", "rows", "expected"),
    [
        (None, 20, 19),
        (Tokenizer("<s>", "<unused0>", "<MASK>"), 20, 12),
        (Tokenizer("<s>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"), 20, 11),
        (Tokenizer("<s>", "</s>"), 20, 12),
        (Tokenizer("<s>", "<file>", "<|user|>", "<end>", eos_token_id=13), 14, 11),
        (Tokenizer("<s>", AddedToken("word", special=False), bos_token_id=10), 12, 11),
        (Tokenizer("<mask>", eos_token_id=10), 11, 10),
        (Tokenizer("a", "<mask>"), 11, 10),
    ],
    ids=["none", "mask", "reserved", "padding-row", "spare-special", "last", "mask-is-eos", "mask-without-row"],
)
def test_rule(tokenizer, rows, expected):
    assert pick_mask_token(tokenizer, rows) == expected
