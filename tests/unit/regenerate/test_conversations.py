import pytest

from specdraft.regenerate.conversations import Answer, conversation, read_conversations, script_of


def said(*turns):
    return [dict(zip(("role", "content"), turn.split(": ", 1), strict=True)) for turn in turns]


@pytest.mark.parametrize(
    ("messages", "script"),
    [
        (said("user: a"), "user ?"),
        (said("system: s", "user: a", "assistant: x", "user: b"), "system user ? user ?"),
        (said("user: a", "user: b", "assistant: x"), "user ? user ?"),
        (said("user: a", "developer: d", "assistant: x"), "user developer ?"),
        (said("user: a", "assistant: x", "assistant: y"), "user ?"),
        (said("assistant: greeting", "user: a"), "assistant user ?"),
        (
            [*said("user: a"), {"role": "assistant", "content": "", "tool_calls": [1]}, *said("tool: t")],
            "user assistant tool ?",
        ),
        (said("system: s"), "system"),
    ],
)
def test_the_target_speaks_behind_each_turn_of_the_user(messages, script):
    found = script_of(messages)
    assert " ".join("?" if message is None else message["role"] for message in found) == script


def test_a_row_keeps_its_key_whatever_was_answered():
    row = {"id": 7, "messages": said("user: a", "assistant: x", "user: b"), "source": "web"}
    asked = conversation(row, "f:1")
    key = asked.key
    asked.answers.append(Answer("cut", finished=False))
    assert asked.context() is None
    out = asked.answered()
    assert out == {
        "id": 7,
        "source": "web",
        "messages": said("user: a", "assistant: cut"),
        "unanswered": said("user: b"),
        "finished": False,
    }
    assert conversation(out, "f:1").key == key
    asked.answers = [Answer("one"), Answer("two", ids=[3, 4])]
    assert conversation(asked.answered(), "f:1").key == key
    assert "response_ids" not in asked.answered()
    asked.answers[0] = Answer("one", ids=[1], exact=False)
    assert asked.answered()["response_ids"] == [3, 4]
    assert conversation({**row, "messages": said("user: c")}, "f:1").key != key


def test_sharegpt_rows_become_messages():
    row = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "x"}]}
    asked = conversation(row, "f:1")
    asked.answers.append(Answer("one"))
    assert asked.answered() == {"messages": said("user: a", "assistant: one")}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": said("system: s")}, "f:3: the user says nothing"),
        ({"text": "a"}, "f:3: a row needs 'messages'"),
        ({"prompt": " "}, "f:3: the prompt is empty"),
        ({"messages": [{"role": "usr", "content": "a"}]}, "f:3: message 0 has the unknown role 'usr'"),
    ],
)
def test_a_row_without_a_question_is_named(row, message):
    with pytest.raises(ValueError, match=message):
        conversation(row, "f:3")


def test_a_row_that_cannot_be_written_is_named_before_it_is_answered(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "fine"}\n{"prompt": "half of a pair: \\ud83d"}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl:2: the row cannot be written as JSON .*surrogates"):
        read_conversations(str(file))
