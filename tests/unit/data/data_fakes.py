"""A word-level tokenizer, chat templates and a fake target, small enough to check by hand."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdraft.data.tokens import TokenisedRows
from specdraft.types import TargetOutput, TargetSpec

SPECIAL = [
    "<unk>", "<eos>", "<|im_start|>", "<|im_end|>", "<|begin|>", "<|head|>", "<|/head|>", "<|eot|>",
    "<think>", "</think>", "\n",
]  # fmt: skip
WORDS = [
    "system", "user", "assistant", "tool", "model", "be", "brief", "hello", "hi", "there", "how", "are", "you", "fine",
    "thanks", "two", "is", "it", "a", "b", "c", "d", "e", "f", "g",
]  # fmt: skip

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# adds a system message of its own when there is none
CHATML_SYSTEM = "{% if messages[0].role != 'system' %}<|im_start|>system\nbe brief<|im_end|>\n{% endif %}" + CHATML
LLAMA = (
    "<|begin|>{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
# strips thinking from every assistant turn but the last, as published reasoning models do
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# the prompt opens a thinking block that the history does not have: no turn can be told apart
BROKEN = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>{% endif %}")
TAGS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(template: str | None, eos: str = "<|im_end|>") -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    out = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token=eos)
    out.add_special_tokens({"additional_special_tokens": SPECIAL[2:]})
    out.chat_template = template
    return out


def ids(tok: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids of tokens that are written out, with spaces between; ``NL`` is the line break."""
    out = tok.convert_tokens_to_ids(["\n" if word == "NL" else word for word in text.split()])
    assert tok.unk_token_id not in out
    return out


def chat(*turns: str) -> list[dict[str, str]]:
    """``"user: hello"`` and so on as messages."""
    return [dict(zip(("role", "content"), turn.split(": ", 1), strict=True)) for turn in turns]


class FakeTarget:
    """Causal features: each tap holds its scale times a running mean of random embeddings."""

    def __init__(self, tok=None, name: str = "fake", taps: tuple[int, ...] = (1, 3), seed: int = 0) -> None:
        self.tokenizer = tok or tokenizer(CHATML)
        self.spec = TargetSpec(name, hidden_size=8, vocab_size=len(self.tokenizer), num_layers=6, taps=taps)
        self.device = torch.device("cpu")
        self.stop_token_ids = (self.tokenizer.eos_token_id,)
        self.table = torch.randn(len(self.tokenizer), 8, generator=torch.Generator().manual_seed(seed))
        self.calls = 0

    def features(self, input_ids, position_ids=None, document_ids=None, *, last_hidden=False):
        assert not torch.is_grad_enabled()
        self.calls += 1
        state = self.table[input_ids].cumsum(1) / (position_ids + 1)[..., None]
        features = torch.cat([state * 10.0**tap for tap in self.spec.taps], -1)
        return TargetOutput(state + 1 if last_hidden else None, features)


def write_jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def many_rows(count: int, start: int = 0) -> list[dict]:
    words = list("abcdefg")
    return [
        {
            "id": f"r{i}",
            "family": "even" if i % 2 == 0 else "odd",
            "prompt": " ".join(words[j % 7] for j in range(i, i + 1 + i % 5)),
            "response": " ".join(words[(j * 3 + i) % 7] for j in range(2 + i % 4)),
        }
        for i in range(start, start + count)
    ]


def rows(count=12):
    """Rows of 2 to 8 tokens, all supervised."""
    out = TokenisedRows()
    for i in range(count):
        tokens = [(i * 5 + j) % 20 for j in range(2 + i * 3 % 7)]
        out.append(f"r{i}", "", tokens, [True] * len(tokens))
    return out


def contents(folder):
    """Bytes of every file below a folder, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
