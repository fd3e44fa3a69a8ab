import json

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
        ({"messages": said("system: s")}, "f:3: no turn of a user or a tool waits"),
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


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "clock"}}]}


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (Answer("one"), 4),
        (Answer("one", ids=[1, 2]), 4),
        (Answer("one", ids=[1, 2], exact=False), 2),
        (Answer("one", finished=False), 2),
    ],
)
def test_ids_and_limits_belong_to_the_last_answer_of_a_row(answer, kept):
    messages = [*said("user: a"), CALL]  # the call is the source's: the target did not make it
    row = {"messages": [*said("user: a", "assistant: x", "system: b"), CALL]}
    asked = conversation(row, "f:1")
    key = asked.key
    asked.answers.append(answer)
    out = asked.answered()
    assert len(out["messages"]) == kept
    assert out["messages"][:2] == said("user: a", "assistant: one")
    assert out.get("unanswered", []) == [*said("system: b"), CALL][kept - 2 :]
    assert conversation(out, "f:1").key == key
    with pytest.raises(ValueError, match="no turn of a user or a tool waits for an answer"):
        conversation({"messages": messages}, "f:1")


def test_other_tools_are_another_row():
    row = {"id": 1, "prompt": "a"}
    tools = [{"function": {"name": "clock"}}]
    offered = conversation({**row, "tools": json.dumps(tools)}, "f:1")
    assert offered.tools == tuple(tools)
    assert offered.options({"polite": True}) == {"polite": True, "tools": tools}
    assert conversation(row, "f:1").options(None) is None
    assert offered.key != conversation(row, "f:1").key
    assert offered.key == conversation({**row, "tools": tools}, "f:1").key
    for wrong in ("clock", [1], {"a": 1}):
        with pytest.raises(ValueError, match="f:1: 'tools'"):
            conversation({**row, "tools": wrong}, "f:1")
