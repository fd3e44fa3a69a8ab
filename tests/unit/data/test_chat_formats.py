"""Loss masks under published chat templates, token by token: what is in «brackets» is supervised, and nothing else."""

from __future__ import annotations

from datetime import datetime

import pytest
from chat_formats import STOPS, tokenizer_of

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

Q_SYSTEM = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
Q_HELLO = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
Q_MORE = "<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
Q_ASK = "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
Q_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
Q_RESULT = "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
EMPTY = "<think>\n\n</think>\n\n"
L = "<|start_header_id|>{}<|end_header_id|>\n\n"
L_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
L_SYSTEM = "<|begin_of_text|>" + L.format("system") + L_DATES + "{}<|eot_id|>"
L_HELLO = L.format("user") + "hello<|eot_id|>" + L.format("assistant")
L_MORE = L.format("user") + "and?<|eot_id|>" + L.format("assistant")
O_HEAD = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
    f"Current date: {datetime.now():%Y-%m-%d}\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. "
    "Channel must be included for every message.<|end|>"
)
O_SYSTEM = "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n<|end|>"
O_HELLO = "<|start|>user<|message|>hello<|end|><|start|>assistant"
O_ASK = "<|start|>user<|message|>1+1<|end|><|start|>assistant"
Z_HELLO = "[gMASK]<sop><|user|>\nhello<|assistant|>"
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
    "llama-3.1": {
        "plain": (HELLO, L_SYSTEM.format("") + L_HELLO + "«hi you<|eot_id|>»"),
        "system": ([SYSTEM, *HELLO], L_SYSTEM.format("Be brief.") + L_HELLO + "«hi you<|eot_id|>»"),
        "turns": (TWO_TURNS, L_SYSTEM.format("") + L_HELLO + "«hi you<|eot_id|>»" + L_MORE + "«fine<|eot_id|>»"),
        "tools": (
            TOOLS,
            L_SYSTEM.format("")
            + L.format("user")
            + "1+1<|eot_id|>"
            + L.format("assistant")
            + '«{"name": "add", "parameters": {"a": 1}}<|eot_id|>»'
            + L.format("ipython")
            + '"2"<|eot_id|>'
            + L.format("assistant")
            + "«two<|eot_id|>»",
        ),
        "trimmed": (
            [HELLO[0], {"role": "assistant", "content": "  hi you \n"}],
            L_SYSTEM.format("") + L_HELLO + "«hi you<|eot_id|>»",
        ),
    },
    "gemma-3": {
        "plain": (HELLO, "<bos>" + G.format("hello") + "«hi you<end_of_turn>»\n"),
        "system": ([SYSTEM, *HELLO], "<bos>" + G.format("Be brief.\n\nhello") + "«hi you<end_of_turn>»\n"),
        "turns": (
            TWO_TURNS,
            "<bos>" + G.format("hello") + "«hi you<end_of_turn>»\n" + G.format("and?") + "«fine<end_of_turn>»\n",
        ),
    },
    # thoughts and the answer are messages of their own within a turn; its end differs in the last turn
    "gpt-oss": {
        "plain": (HELLO, O_HELLO + "«<|channel|>final<|message|>hi you<|return|>»"),
        "system": ([SYSTEM, *HELLO], O_SYSTEM + O_HELLO + "«<|channel|>final<|message|>hi you<|return|>»"),
        "turns": (
            TWO_TURNS,
            O_HELLO
            + "<|channel|>final<|message|>hi you<|end|><|start|>user<|message|>and?<|end|><|start|>assistant"
            + "«<|channel|>final<|message|>fine<|return|>»",
        ),
        "tools": (
            TOOLS,
            O_ASK
            + '« to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>»'
            + '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"2"<|end|><|start|>assistant'
            + "«<|channel|>final<|message|>two<|return|>»",
        ),
        "thinking": (
            [THOUGHT[0], {"role": "assistant", "content": "two", "thinking": "so"}],
            O_ASK
            + "«<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>two<|return|>»",
        ),
    },
    # no token ends a turn: the role that follows does
    "glm-4.5": {
        "plain": (HELLO, Z_HELLO + "«\n<think></think>\nhi you»"),
        "system": (
            [SYSTEM, *HELLO],
            "[gMASK]<sop><|system|>\nBe brief." + Z_HELLO[12:] + "«\n<think></think>\nhi you»",
        ),
        "turns": (
            TWO_TURNS,
            Z_HELLO + "«\n<think></think>\nhi you»<|user|>\nand?<|assistant|>«\n<think></think>\nfine»",
        ),
        "thinking": (THOUGHT, "[gMASK]<sop><|user|>\n1+1<|assistant|>«\n<think>so</think>\ntwo»"),
        "tools": (
            TOOLS,
            "[gMASK]<sop><|user|>\n1+1<|assistant|>"
            "«\n<think></think>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>»"
            "<|observation|>\n<tool_response>\n2\n</tool_response><|assistant|>«\n<think></think>\ntwo»",
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
    tokenizer = tokenizer_of(format_name)
    how["stop_token_ids"] = tokenizer.convert_tokens_to_ids(STOPS.get(format_name, []))
    if format_name == "gpt-oss":
        marked = O_HEAD + marked
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
    assert len(CASES) >= 5
    assert all({"plain", "system", "turns"} <= cases.keys() for cases in CASES.values())


def test_without_thinking_the_empty_thought_is_part_of_the_prompt():
    marked = Q_HELLO + EMPTY + "«hi you<|im_end|>»\n"
    check("qwen3", HELLO, marked, options={"enable_thinking": False})


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama-3.1", "gpt-oss", "glm-4.5"])
def test_descriptions_of_tools_are_context(name):
    """Told which tools there are, the model answers with the same tokens: only they are supervised."""
    tool = {"type": "function", "function": {"name": "add", "description": "Sum.", "parameters": {"properties": {}}}}
    tokenizer = tokenizer_of(name)
    how = {"max_length": 9999, "stop_token_ids": tokenizer.convert_tokens_to_ids(STOPS.get(name, []))}
    bare = encode_conversation(tokenizer, TOOLS, **how)
    told = encode_conversation(tokenizer, TOOLS, options={"tools": [tool]}, **how)
    assert "Sum." in tokenizer.decode(told.input_ids)
    assert len(told.input_ids) > len(bare.input_ids)
    answers = [[i for i, m in zip(one.input_ids, one.loss_mask, strict=True) if m] for one in (bare, told)]
    assert answers[0] == answers[1]


def test_a_turn_is_supervised_up_to_the_stop_tokens_of_the_target():
    tokenizer = tokenizer_of("gemma-3")
    tokenizer.eos_token = "</s>"  # some tokenizers name another end of sequence
    stop = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    ids, mask = expected_tokens(tokenizer, CASES["gemma-3"]["turns"][1])
    encoded = encode_conversation(tokenizer, TWO_TURNS, max_length=4096, stop_token_ids=[stop])
    assert (encoded.input_ids, encoded.loss_mask) == (ids, mask)


@pytest.mark.parametrize(
    ("name", "messages", "why"),
    [
        ("gemma-3", [HELLO[0], *HELLO], "roles must alternate"),
        ("gemma", [SYSTEM, *HELLO], "System role not supported"),
        # drops calls silently: an empty answer would be supervised
        ("llama-3", TOOLS, "does not write the tool calls of message 1"),
        # expects arguments as text and fails with an error of Python
        ("deepseek-v3", TOOLS, "can only concatenate str"),
        # opens a thought in the prompt that it leaves out of the conversation
        ("deepseek-r1-distill", HELLO, r"the prompt of message 1 is not a prefix of the conversation .*<think>"),
        # drops an earlier thought once an answer follows the tool
        ("gpt-oss", [THOUGHT_TOOLS[0], {**TOOLS[1], "thinking": "ask"}, *TOOLS[2:]], "message 3 is not a prefix"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_a_template_cannot_render_is_refused(name, messages, why):
    with pytest.raises(Unusable, match=why) as caught:
        encode_conversation(tokenizer_of(name), messages, max_length=4096)
    assert caught.value.reason == "chat template"


def test_a_template_that_marks_the_assistants_text_but_drops_tool_calls_is_refused():
    tokenizer = tokenizer_of("mistral")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(Unusable, match="does not write the tool calls of message 1"):
        encode_conversation(tokenizer, TOOLS, max_length=4096)


def test_a_break_in_the_middle_of_a_token_is_refused_with_the_first_difference():
    """A response that begins with a line break merges with that of the prompt: no token is where generation starts."""
    tokenizer = tokenizer_of("qwen2.5")
    prompt = len(tokenizer.apply_chat_template(HELLO[:1], add_generation_prompt=True, return_dict=True)["input_ids"])
    messages = [HELLO[0], {"role": "assistant", "content": "\nhi"}]
    with pytest.raises(Unusable, match="is not a prefix of the conversation") as caught:
        encode_conversation(tokenizer, messages, max_length=4096)
    assert caught.value.reason == "chat template"
    line, pair = (tokenizer.convert_tokens_to_ids(token) for token in ("\u010a", "\u010a\u010a"))
    assert f"token {prompt - 1} is [{line}]" in str(caught.value)
    assert f"in the prompt and [{pair}, " in str(caught.value)
    assert "{% generation %}" in str(caught.value)
