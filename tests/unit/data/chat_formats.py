"""Chat templates in the formats of published models, and a byte-level tokenizer that renders any of them."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_CALL = "{{ '<tool_call>\\n' }}{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
_TOOLS = (
    "{% if tools %}{{ '\\n\\n# Tools\\n\\n<tools>' }}{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}"
    "{{ '\\n</tools>' }}{% endif %}"
)
# answers of tools are told to the model as a user's turn, neighbouring ones together
_TOOL_TURN = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
)

# ChatML of Qwen2.5: a system prompt of its own where there is none, tools in the system turn
QWEN25 = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% else %}{% set system = 'You are a helpful assistant.' %}{% endif %}"
    "{{ '<|im_start|>system\\n' + system }}" + _TOOLS + "{{ '<|im_end|>\\n' }}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant' }}"
    "{% if m.content %}{{ '\\n' + m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ '\\n' }}"
    + _CALL
    + "{{ '\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% elif m.role == 'tool' %}" + _TOOL_TURN + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Qwen3: thinking stays in turns behind the last question only, and in the last turn even where it is empty
QWEN3 = (
    "{% set ns = namespace(query=messages | length - 1, found=false) %}"
    "{% for m in messages[::-1] %}{% if not ns.found and m.role == 'user' %}"
    "{% set ns.found = true %}{% set ns.query = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}"
    "{% if messages[0].role == 'system' or tools %}{{ '<|im_start|>system\\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    + _TOOLS
    + "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}"
    "{% elif m.role == 'assistant' %}"
    "{% set content = m.content or '' %}{% set thought = m.reasoning_content or '' %}"
    "{% if not thought and '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\\n' }}"
    "{% if loop.index0 > ns.query and (loop.last or thought) %}"
    "{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}{{ content }}"
    "{% for call in m.tool_calls or [] %}{% if content or not loop.first %}{{ '\\n' }}{% endif %}"
    "" + _CALL + "{{ '\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% elif m.role == 'tool' %}" + _TOOL_TURN + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{% endif %}{% endif %}"
)

# Llama 3: a header for every turn, contents trimmed, tools answer as ipython
LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{% set role = 'ipython' if m.role == 'tool' else m.role %}"
    "{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}"
    "{% if m.tool_calls %}{% set call = m.tool_calls[0] %}"
    "{{ {'name': call.function.name, 'parameters': call.function.arguments} | tojson }}"
    "{% else %}{{ m.content | trim }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

# Gemma 3: the system prompt is part of the user's first turn, the assistant is called model, turns alternate
GEMMA = (
    "{{ '<bos>' }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"
    "{% if loop.first %}{{ first }}{% endif %}{{ m.content | trim }}{{ '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)

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

# template, end of a turn
FORMATS = {
    "qwen2.5": (QWEN25, "<|im_end|>"),
    "qwen3": (QWEN3, "<|im_end|>"),
    "llama-3": (LLAMA3, "<|eot_id|>"),
    "gemma-3": (GEMMA, "<end_of_turn>"),
    "mistral": (MISTRAL, "</s>"),
}
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<bos>",
    "<start_of_turn>", "<end_of_turn>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
]  # fmt: skip


def byte_tokenizer(template: str, eos: str) -> PreTrainedTokenizerFast:
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
    out = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=eos)
    out.add_special_tokens({"additional_special_tokens": SPECIAL})
    out.chat_template = template
    return out
