"""Published chat templates, and a byte-level tokenizer that renders any of them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# trl keeps the texts that model repositories publish; it is not imported
TRL = "trl"


def published(name: str) -> str:
    """Text of a published chat template; the test is skipped where it is not installed."""
    try:
        files = metadata.files(TRL) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == f"{name}.jinja":
            return Path(str(file.locate())).read_text(encoding="utf-8")
    pytest.skip(f"the published chat templates come with {TRL}, which is not installed (the extra 'test')")


# Mistral 7B v0.3: the system prompt is part of the user's *last* turn, answers have no header
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}{{ '<s>' }}"
    "{% set ns = namespace(last=0) %}{% for m in turns %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in turns %}"
    "{% if m.role == 'user' %}{{ '[INST] ' }}"
    "{% if loop.index0 == ns.last and system %}{{ system + '\\n\\n' }}{% endif %}"
    "{{ m.content + '[/INST]' }}"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS] [' }}{% for call in m.tool_calls %}"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}{% endfor %}{{ ']</s>' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content | trim + '</s>' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS] ' + m.content + '[/TOOL_RESULTS]' }}{% endif %}{% endfor %}"
)

# file of the template (None: the text above), end of a turn, beginning of a sequence
FORMATS = {
    "qwen2.5": ("qwen2_5", "<|im_end|>", None),
    "qwen3": ("qwen3", "<|im_end|>", None),
    "llama-3.1": ("llama3_1", "<|eot_id|>", "<|begin_of_text|>"),
    "gemma-3": ("gemma3", "<end_of_turn>", "<bos>"),
    "gpt-oss": ("gptoss", "<|return|>", None),
    "glm-4.5": ("glm4moe", "<|endoftext|>", None),
    "mistral": (None, "</s>", None),
    # below: what they refuse
    "llama-3": ("llama3", "<|eot_id|>", "<|begin_of_text|>"),
    "gemma": ("gemma", "<end_of_turn>", "<bos>"),
    "deepseek-v3": ("deepseekv3", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    "deepseek-r1-distill": ("deepseek_r1_distill", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
}
# tokens besides the end of sequence at which the model stops
STOPS = {"gpt-oss": ["<|call|>"]}
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<bos>",
    "<start_of_turn>", "<end_of_turn>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "[gMASK]",
    "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>", "<｜User｜>",
    "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>",
]  # fmt: skip


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """Tokenizer of one of the formats."""
    file, eos, bos = FORMATS[name]
    return byte_tokenizer(MISTRAL if file is None else published(file), eos, bos)


def byte_tokenizer(template: str, eos: str, bos: str | None = None) -> PreTrainedTokenizerFast:
    """Bytes, the control tokens of all formats, and one merge: two line breaks are a token of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    line = "\u010a"  # how byte-level tokenizers write a line break
    vocabulary = {token: i for i, token in enumerate([*alphabet, line + line])}
    raw = Tokenizer(models.BPE(vocabulary, merges=[(line, line)]))
    # as the tokenizers of Llama 3 and Qwen cut: line breaks stay together, whatever follows
    words = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    cut = pre_tokenizers.Split(Regex(words), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    raw.decoder = decoders.ByteLevel()
    out = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=eos, bos_token=bos)
    out.add_special_tokens({"additional_special_tokens": SPECIAL})
    out.chat_template = template
    return out
