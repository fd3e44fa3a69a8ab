import pytest
from data_fakes import BROKEN, CHATML, CHATML_SYSTEM, LLAMA, TAGS, THINKING, chat, ids, tokenizer

from specdraft.data.chat import Unusable, encode_conversation, encode_ids, encode_plain
from specdraft.data.encode import RowEncoder
from specdraft.data.rows import parse_row

HELLO = chat("user: hello there", "assistant: hi you")
TWO = chat("system: be brief", "user: hello", "assistant: hi", "user: how are you", "assistant: fine thanks")


def marked(tok, encoded):
    """Supervised tokens in brackets."""
    words = ["NL" if t == "\n" else t for t in tok.convert_ids_to_tokens(encoded.input_ids)]
    return " ".join(f"[{w}]" if m else w for w, m in zip(words, encoded.loss_mask, strict=True))


@pytest.mark.parametrize(
    ("template", "eos", "messages", "expected"),
    [
        (
            CHATML,
            "<|im_end|>",
            HELLO,
            "<|im_start|> user NL hello there <|im_end|> NL <|im_start|> assistant NL [hi] [you] [<|im_end|>] NL",
        ),
        (
            CHATML,
            "<|im_end|>",
            TWO,
            "<|im_start|> system NL be brief <|im_end|> NL <|im_start|> user NL hello <|im_end|> NL "
            "<|im_start|> assistant NL [hi] [<|im_end|>] NL <|im_start|> user NL how are you <|im_end|> NL "
            "<|im_start|> assistant NL [fine] [thanks] [<|im_end|>] NL",
        ),
        (
            CHATML_SYSTEM,
            "<|im_end|>",
            HELLO,
            "<|im_start|> system NL be brief <|im_end|> NL <|im_start|> user NL hello there <|im_end|> NL "
            "<|im_start|> assistant NL [hi] [you] [<|im_end|>] NL",
        ),
        (
            LLAMA,
            "<|eot|>",
            TWO[1:],
            "<|begin|> <|head|> user <|/head|> NL NL hello <|eot|> <|head|> assistant <|/head|> NL NL [hi] [<|eot|>] "
            "<|head|> user <|/head|> NL NL how are you <|eot|> "
            "<|head|> assistant <|/head|> NL NL [fine] [thanks] [<|eot|>]",
        ),
        (
            TAGS,
            "<|im_end|>",
            TWO[1:],
            "<|im_start|> user NL hello <|im_end|> NL <|im_start|> assistant NL [hi] [<|im_end|>] NL "
            "<|im_start|> user NL how are you <|im_end|> NL <|im_start|> assistant NL [fine] [thanks] [<|im_end|>] NL",
        ),
    ],
)
def test_masks_token_by_token(template, eos, messages, expected):
    tok = tokenizer(template, eos)
    assert marked(tok, encode_conversation(tok, messages, max_length=99)) == expected


def test_whole_turn_is_supervised_without_a_stop_token():
    tok = tokenizer(CHATML, eos="<eos>")
    shown = marked(tok, encode_conversation(tok, HELLO, max_length=99))
    assert shown.endswith("assistant NL [hi] [you] [<|im_end|>] [NL]")
    shown = marked(tok, encode_conversation(tok, HELLO, max_length=99, stop_token_ids=ids(tok, "<|im_end|>")))
    assert shown.endswith("assistant NL [hi] [you] [<|im_end|>] NL")


def test_turns_that_the_template_rewrites_are_context_only():
    tok = tokenizer(THINKING)
    messages = chat(
        "user: hello", "assistant: <think> is it </think> hi", "user: how", "assistant: <think> a </think> fine"
    )
    encoded = encode_conversation(tok, messages, max_length=99)
    assert encoded.context_turns == 1
    assert marked(tok, encoded) == (
        "<|im_start|> user NL hello <|im_end|> NL <|im_start|> assistant NL hi <|im_end|> NL "
        "<|im_start|> user NL how <|im_end|> NL "
        "<|im_start|> assistant NL [<think>] [a] [</think>] [fine] [<|im_end|>] NL"
    )


def test_a_greeting_that_nobody_asked_for_is_context():
    tok = tokenizer(CHATML)
    encoded = encode_conversation(tok, chat("assistant: hello", "user: hi", "assistant: fine"), max_length=99)
    assert marked(tok, encoded) == (
        "<|im_start|> assistant NL hello <|im_end|> NL <|im_start|> user NL hi <|im_end|> NL "
        "<|im_start|> assistant NL [fine] [<|im_end|>] NL"
    )


def test_the_tools_of_a_row_reach_the_template():
    described = "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.name }} {% endfor %}<|im_end|>\n{% endif %}"
    tok = tokenizer(described + CHATML)
    row = {"messages": chat("user: hi", "assistant: fine")}
    plain, offered = (parse_row({**row, **more}, "f:1") for more in ({}, {"tools": '[{"name": "a"}, {"name": "b"}]'}))
    encoder = RowEncoder(tok, max_length=99)
    assert encoder.prompt(offered) == ids(tok, "<|im_start|> system NL a b <|im_end|> NL") + encoder.prompt(plain)
    assert encoder.encode(offered).input_ids[: len(encoder.prompt(offered))] == encoder.prompt(offered)
    assert plain.id != offered.id
    for wrong in ("a", "[1", [1]):
        with pytest.raises(ValueError, match="f:1: 'tools'"):
            parse_row({**row, "tools": wrong}, "f:1")


def test_a_row_that_the_template_fails_on_is_left_out_and_named():
    tok = tokenizer(
        "{% for m in messages %}{{ 'a' + m.content }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
    )
    part = [{"type": "text", "text": "hello"}]
    bad = parse_row({"messages": [{"role": "user", "content": part}, *chat("assistant: hi")]}, "rows.jsonl:7")
    good = parse_row({"messages": chat("user: hello", "assistant: hi you")}, "rows.jsonl:8")
    with pytest.warns(UserWarning, match=r"kept 1 of 2 rows: 1 chat template.*rows\.jsonl:7: .*can only concatenate"):
        assert len(RowEncoder(tok, max_length=99, min_labels=1).encode_all([bad, good], "train")) == 1
    with pytest.raises(ValueError, match=r"no row of rows\.jsonl can be supervised; the first: rows\.jsonl:7"):
        RowEncoder(tok, max_length=99).encode_all([bad], "train")


def test_a_row_that_cannot_be_encoded_is_named(monkeypatch):
    tok = tokenizer(CHATML)
    row = parse_row({"messages": chat("user: hello", "assistant: hi")}, "rows.jsonl:7")
    monkeypatch.setattr(tok, "apply_chat_template", lambda *_, **__: int("no number"))
    with pytest.raises(ValueError, match=r"rows\.jsonl:7: the row cannot be encoded: invalid literal"):
        RowEncoder(tok, max_length=99).encode_all([row], "train")


def test_a_broken_prefix_is_refused_with_the_first_difference():
    tok = tokenizer(BROKEN)
    with pytest.raises(Unusable, match=r"token 10 is \[8\].*<think>.*in the prompt and \[\d+.*hi you") as caught:
        encode_conversation(tok, HELLO, max_length=99)
    assert caught.value.reason == "chat template"


def test_a_refusing_template_is_a_template_problem():
    tok = tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(Unusable, match="chat template: roles must alternate"):
        encode_conversation(tok, HELLO, max_length=99)


def test_no_template_needs_plain_rows():
    with pytest.raises(ValueError, match="no chat template"):
        encode_conversation(tokenizer(None), HELLO, max_length=99)
    tok = tokenizer(None, eos="<eos>")
    encoded = encode_plain(tok, "hello there", "hi you", max_length=99)
    assert marked(tok, encoded) == "hello there [hi] [you] [<eos>]"


def test_what_follows_the_last_response_is_ignored():
    tok = tokenizer(CHATML)
    assert encode_conversation(tok, [*HELLO, *chat("user: how")], max_length=99) == encode_conversation(
        tok, HELLO, max_length=99
    )


@pytest.mark.parametrize(
    ("messages", "reason"),
    [(chat("user: hello"), "no assistant turn"), (chat("user: a", "assistant: "), "empty response")],
)
def test_unusable_rows_name_the_reason(messages, reason):
    with pytest.raises(Unusable) as caught:
        encode_conversation(tokenizer(CHATML), messages, max_length=99)
    assert caught.value.reason == reason


def test_truncation_cuts_the_end_while_labels_remain():
    tok = tokenizer(CHATML)
    whole = encode_conversation(tok, TWO, max_length=99)
    cut = encode_conversation(tok, TWO, max_length=20)
    assert cut.input_ids == whole.input_ids[:20]
    assert sum(cut.loss_mask) == 2


def test_truncation_drops_the_oldest_exchange_but_keeps_the_system_message():
    tok = tokenizer(CHATML)
    shorter = [TWO[0], *TWO[3:]]
    cut = encode_conversation(tok, TWO, max_length=24, min_labels=3)
    assert cut == encode_conversation(tok, shorter, max_length=99)
    assert sum(cut.loss_mask) == 3
    with pytest.raises(Unusable, match="too long"):
        encode_conversation(tok, TWO, max_length=12, min_labels=3)


def test_recorded_ids_are_taken_as_they_are():
    encoded = encode_ids([5, 6], [7, 9, 8, 9], max_length=99, stop_token_ids=[8])
    assert encoded.input_ids == [5, 6, 7, 9, 8, 9]
    assert encoded.loss_mask == [False, False, True, True, True, False]
    with pytest.raises(Unusable, match="too long"):
        encode_ids([5, 6, 7], [1, 2], max_length=4)


def test_template_options_reach_the_template():
    tok = tokenizer(CHATML.replace("{{ m.content }}", "{{ m.content }}{% if loud %} two{% endif %}"))
    encoded = encode_conversation(tok, HELLO, max_length=99, options={"loud": True})
    assert "[you] [two]" in marked(tok, encoded)


@pytest.mark.parametrize("template", [CHATML, TAGS, None])
def test_a_response_that_was_cut_does_not_teach_the_end_of_the_turn(template):
    encoder = RowEncoder(tokenizer(template), max_length=99)
    whole = encoder.encode(parse_row({"prompt": "hello there", "response": "hi you"}, "x:1"))
    cut = encoder.encode(parse_row({"prompt": "hello there", "response": "hi you", "finished": False}, "x:2"))
    assert sum(whole.loss_mask) == 3
    assert marked(encoder.tokenizer, cut).endswith("[hi] [you]")
    assert cut.input_ids == whole.input_ids[: len(cut.input_ids)]


def test_exact_tokens_of_a_cut_response_stay_as_they_are():
    tok = tokenizer(CHATML)
    row = parse_row({"prompt": "hello", "response_ids": ids(tok, "hi <|im_end|>"), "finished": False}, "x:1")
    assert marked(tok, RowEncoder(tok, max_length=99).encode(row)).endswith("[hi] [<|im_end|>]")


def test_finished_must_be_a_truth_value():
    with pytest.raises(ValueError, match="x:1: 'finished' must be true or false, got 'no'"):
        parse_row({"prompt": "a", "response": "b", "finished": "no"}, "x:1")
