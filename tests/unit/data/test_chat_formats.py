"""Loss masks of five published chat formats, token by token: what is in «brackets» is supervised, and nothing else."""

from __future__ import annotations

import pytest
from chat_formats import FORMATS, QWEN25, byte_tokenizer

from specdraft.data.chat import Unusable, encode_conversation

SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi you"}]
MORE = [{"role": "user", "content": "and?"}, {"role": "assistant", "content": "fine"}]
TWO_TURNS = [*HELLO, *MORE]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TOOLS = [
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "two"},
]
THOUGHT = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "two", "reasoning_content": "so"}]
THOUGHT_IN_TEXT = [THOUGHT[0], {"role": "assistant", "content": "<think>\nso\n</think>\n\ntwo"}]
THOUGHT_TOOLS = [
    TOOLS[0],
    {**TOOLS[1], "reasoning_content": "ask"},
    TOOLS[2],
    {**TOOLS[3], "reasoning_content": "so"},
]
# the same without a word of thought before the call
SILENT_TOOLS = [TOOLS[0], TOOLS[1], TOOLS[2], THOUGHT_TOOLS[3]]

Q_SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
Q_HELLO = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
Q_MORE = "<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
Q_ASK = "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
Q_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
Q_RESULT = "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
EMPTY = "<think>\n\n</think>\n\n"
L = "<|start_header_id|>{}<|end_header_id|>\n\n"
L_HELLO = L.format("user") + "hello<|eot_id|>" + L.format("assistant")
L_MORE = L.format("user") + "and?<|eot_id|>" + L.format("assistant")
G = "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"

CASES = {
    "qwen2.5": {
        "plain": (HELLO, Q_SYSTEM + Q_HELLO + "«hi you<|im_end|>»\n"),
        "system": ([SYSTEM, *HELLO], "<|im_start|>system\nBe brief.<|im_end|>\n" + Q_HELLO + "«hi you<|im_end|>»\n"),
        "turns": (TWO_TURNS, Q_SYSTEM + Q_HELLO + "«hi you<|im_end|>»\n" + Q_MORE + "«fine<|im_end|>»\n"),
        "tools": (TOOLS, Q_SYSTEM + Q_ASK + f"«{Q_CALL}<|im_end|>»\n" + Q_RESULT + "«two<|im_end|>»\n"),
        # no format of thoughts: they are text
        "thinking": (THOUGHT_IN_TEXT, Q_SYSTEM + Q_ASK + "«<think>\nso\n</think>\n\ntwo<|im_end|>»\n"),
    },
    "qwen3": {
        "plain": (HELLO, Q_HELLO + f"«{EMPTY}hi you<|im_end|>»\n"),
        "system": ([SYSTEM, *HELLO], f"<|im_start|>system\nBe brief.<|im_end|>\n{Q_HELLO}«{EMPTY}hi you<|im_end|>»\n"),
        # the empty thought goes once the conversation goes on: the model never wrote the earlier turn as it stands
        "turns": (TWO_TURNS, Q_HELLO + "hi you<|im_end|>\n" + Q_MORE + f"«{EMPTY}fine<|im_end|>»\n"),
        "thinking": (THOUGHT, Q_ASK + "«<think>\nso\n</think>\n\ntwo<|im_end|>»\n"),
        "thinking in text": (THOUGHT_IN_TEXT, Q_ASK + "«<think>\nso\n</think>\n\ntwo<|im_end|>»\n"),
        "thinking, turns": (
            [*THOUGHT, *MORE],
            Q_ASK + "two<|im_end|>\n" + Q_MORE + f"«{EMPTY}fine<|im_end|>»\n",
        ),
        # between question and answer thoughts stay, so that both turns are what the model wrote
        "thinking, tools": (
            THOUGHT_TOOLS,
            Q_ASK
            + f"«<think>\nask\n</think>\n\n{Q_CALL}<|im_end|>»\n"
            + Q_RESULT
            + "«<think>\nso\n</think>\n\ntwo<|im_end|>»\n",
        ),
        "silent tools": (
            SILENT_TOOLS,
            Q_ASK + f"{Q_CALL}<|im_end|>\n" + Q_RESULT + "«<think>\nso\n</think>\n\ntwo<|im_end|>»\n",
        ),
    },
    "llama-3": {
        "plain": (HELLO, "<|begin_of_text|>" + L_HELLO + "«hi you<|eot_id|>»"),
        "system": (
            [SYSTEM, *HELLO],
            "<|begin_of_text|>" + L.format("system") + "Be brief.<|eot_id|>" + L_HELLO + "«hi you<|eot_id|>»",
        ),
        "turns": (TWO_TURNS, "<|begin_of_text|>" + L_HELLO + "«hi you<|eot_id|>»" + L_MORE + "«fine<|eot_id|>»"),
        "tools": (
            TOOLS,
            "<|begin_of_text|>"
            + L.format("user")
            + "1+1<|eot_id|>"
            + L.format("assistant")
            + '«{"name": "add", "parameters": {"a": 1}}<|eot_id|>»'
            + L.format("ipython")
            + "2<|eot_id|>"
            + L.format("assistant")
            + "«two<|eot_id|>»",
        ),
        "trimmed": ([HELLO[0], {"role": "assistant", "content": "  hi you \n"}], None),
    },
    "gemma-3": {
        "plain": (HELLO, "<bos>" + G.format("hello") + "«hi you<end_of_turn>»\n"),
        "system": ([SYSTEM, *HELLO], "<bos>" + G.format("Be brief.\n\nhello") + "«hi you<end_of_turn>»\n"),
        "turns": (
            TWO_TURNS,
            "<bos>" + G.format("hello") + "«hi you<end_of_turn>»\n" + G.format("and?") + "«fine<end_of_turn>»\n",
        ),
    },
    "mistral": {
        "plain": (HELLO, "<s>[INST] hello[/INST]« hi you</s>»"),
        "system": ([SYSTEM, *HELLO], "<s>[INST] Be brief.\n\nhello[/INST]« hi you</s>»"),
        "turns": (TWO_TURNS, "<s>[INST] hello[/INST]« hi you</s>»[INST] and?[/INST]« fine</s>»"),
        # the system prompt moves on to the last question: the earlier answer was given to another text
        "system, turns": (
            [SYSTEM, *TWO_TURNS],
            "<s>[INST] hello[/INST] hi you</s>[INST] Be brief.\n\nand?[/INST]« fine</s>»",
        ),
        "tools": (
            TOOLS,
            '<s>[INST] 1+1[/INST]«[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]</s>»'
            "[TOOL_RESULTS] 2[/TOOL_RESULTS]« two</s>»",
        ),
    },
}
CASES["llama-3"]["trimmed"] = (CASES["llama-3"]["trimmed"][0], CASES["llama-3"]["plain"][1])


def expected_tokens(tokenizer, marked):
    """Tokens of a text with «supervised» parts, and which of them lie in one."""
    text, inside, supervised = "", False, []
    for letter in marked:
        if letter in "«»":
            inside = letter == "«"
        else:
            text += letter
            supervised.append(inside)
    out = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = []
    for start, stop in out["offset_mapping"]:
        assert len(set(supervised[start:stop])) == 1, "a token straddles the border"
        mask.append(supervised[start])
    return out["input_ids"], mask


def check(format_name, messages, marked, **how):
    tokenizer = byte_tokenizer(*FORMATS[format_name])
    ids, mask = expected_tokens(tokenizer, marked)
    encoded = encode_conversation(tokenizer, messages, max_length=4096, **how)
    assert tokenizer.decode(encoded.input_ids) == tokenizer.decode(ids)
    assert encoded.input_ids == ids
    shown = [tokenizer.decode([i for i, m in zip(encoded.input_ids, flags, strict=True) if m]) for flags in
             (encoded.loss_mask, mask)]  # fmt: skip
    assert shown[0] == shown[1]
    assert encoded.loss_mask == mask
    return encoded


@pytest.mark.parametrize(
    ("format_name", "case"), [(name, case) for name, cases in CASES.items() for case in cases], ids=str
)
def test_supervised_tokens_are_exactly_the_assistants(format_name, case):
    check(format_name, *CASES[format_name][case])


def test_every_format_is_tested_with_and_without_system_prompt_and_over_turns():
    assert len(FORMATS) == 5
    assert all({"plain", "system", "turns"} <= CASES[name].keys() for name in FORMATS)


def test_without_thinking_the_empty_thought_is_part_of_the_prompt():
    marked = Q_HELLO + EMPTY + "«hi you<|im_end|>»\n"
    check("qwen3", HELLO, marked, options={"enable_thinking": False})


def test_tools_are_described_in_the_system_turn():
    tool = {"type": "function", "function": {"name": "add"}}
    described = '\n\n# Tools\n\n<tools>\n{"type": "function", "function": {"name": "add"}}\n</tools>'
    marked = f"<|im_start|>system\nYou are a helpful assistant.{described}<|im_end|>\n" + Q_HELLO
    check("qwen2.5", HELLO, marked + "«hi you<|im_end|>»\n", options={"tools": [tool]})


def test_a_turn_is_supervised_up_to_the_stop_tokens_of_the_target():
    tokenizer = byte_tokenizer(FORMATS["gemma-3"][0], "</s>")  # some tokenizers name another end of sequence
    stop = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    ids, mask = expected_tokens(tokenizer, CASES["gemma-3"]["turns"][1])
    encoded = encode_conversation(tokenizer, TWO_TURNS, max_length=4096, stop_token_ids=[stop])
    assert (encoded.input_ids, encoded.loss_mask) == (ids, mask)


def test_roles_that_the_format_does_not_take_are_refused():
    tokenizer = byte_tokenizer(*FORMATS["gemma-3"])
    with pytest.raises(Unusable, match="roles must alternate"):
        encode_conversation(tokenizer, [HELLO[0], *HELLO], max_length=4096)


def test_a_break_in_the_middle_of_a_token_is_refused_with_the_first_difference():
    """A response that begins with a line break merges with that of the prompt: no token is where generation starts."""
    tokenizer = byte_tokenizer(QWEN25, "<|im_end|>")
    prompt = len(tokenizer.apply_chat_template(HELLO[:1], add_generation_prompt=True, return_dict=True)["input_ids"])
    messages = [HELLO[0], {"role": "assistant", "content": "\nhi"}]
    with pytest.raises(Unusable, match="is not a prefix of the conversation") as caught:
        encode_conversation(tokenizer, messages, max_length=4096)
    assert caught.value.reason == "chat template"
    line, pair = (tokenizer.convert_tokens_to_ids(token) for token in ("\u010a", "\u010a\u010a"))
    assert f"token {prompt - 1} is [{line}]" in str(caught.value)
    assert f"in the prompt and [{pair}, " in str(caught.value)
    assert "{% generation %}" in str(caught.value)
