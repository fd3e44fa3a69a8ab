"""The client against a real server on loopback that refuses, stalls, breaks off and comes back."""

import json
import socket
import threading

import pytest
from chat_fake import FakeChat, reply, serving

from specdraft.decoding import SamplingParams
from specdraft.regenerate import regenerate
from specdraft.regenerate.clients import Clients
from specdraft.regenerate.conversations import conversation
from specdraft.regenerate.server import ChatServer, ServerError

HELLO = [{"role": "user", "content": "hello"}]


def client(server, params=None, **options):
    options = {"first_wait": 0.002, "timeout": 5.0, "patience": 10.0, **options}
    return ChatServer(getattr(server, "url", server), "some-model", params or SamplingParams(), 9, **options)


def asked(count, turns=1):
    rows = [{"id": f"r{i}", "turns": [f"turn {j} of {i}" for j in range(turns)]} for i in range(count)]
    return [conversation(row, f"rows:{i}") for i, row in enumerate(rows)]


def everything(clients, rows):
    return {row.row["id"]: row.answered() for group in clients.answer(rows) for row in group}


def test_what_is_asked_for(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    with serving() as server:
        answer = client(server).reply(HELLO, seed=3)
        client(server, SamplingParams(0.7, 0.9, 20), options={"enable_thinking": False}).reply(HELLO, seed=3)
    assert (answer.text, answer.finished, answer.ids) == ("HELLO", True, None)
    greedy = {"model": "some-model", "messages": HELLO, "max_tokens": 9, "temperature": 0.0, "stream": False}
    greedy |= {"top_p": 1.0, "repetition_penalty": 1.0}  # or the server takes the model's own
    assert server.bodies[0] == greedy
    sampled = {**greedy, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": 3}
    assert server.bodies[1] == {**sampled, "chat_template_kwargs": {"enable_thinking": False}}
    assert server.headers[0]["Authorization"] == "Bearer sesame"
    with pytest.raises(ValueError, match="'localhost:8000' is no address"):
        client("localhost:8000")
    assert client("http://host/api/v3/").url == "http://host/api/v3/chat/completions"
    assert client("http://host/").url == "http://host/v1/chat/completions"


def test_a_field_that_the_server_does_not_know_is_left_out_unless_it_is_needed():
    def strict(number, body):
        unknown = [name for name in ("top_k", "repetition_penalty") if name in body]
        return (422, f"unexpected {unknown}") if unknown else None

    with serving(fault=strict) as server:
        sampled = client(server, SamplingParams(0.7))
        with pytest.warns(UserWarning, match="does not take repetition_penalty, top_k"):
            assert sampled.reply(HELLO, 0).text == "HELLO"
        assert sampled.reply(HELLO, 0).text == "HELLO"
        assert ["top_k" in body for body in server.bodies] == [True, False, False]
        assert server.bodies[0]["top_k"] == -1
        with pytest.raises(ServerError, match="unexpected"), pytest.warns(UserWarning, match="repetition_penalty"):
            client(server, SamplingParams(0.7, top_k=5)).reply(HELLO, 0)


@pytest.mark.parametrize(
    "fault",
    [
        (503, "loading"),
        (429, "slow down", {"Retry-After": "0"}),
        (200, "<html>"),
        (200, '{"choices": []}'),
        "cut",
        reply("cut short", "abort"),
    ],
)
def test_failures_that_may_pass_are_tried_again(fault):
    with serving(fault=lambda number, body: fault if number < 4 else None) as server:
        assert client(server).reply(HELLO, 0).text == "HELLO"
    assert len(server.bodies) == 4


def test_a_server_that_stalls_is_given_up_and_asked_again():
    release = threading.Event()
    with serving(fault=lambda number, body: release.wait(20) and None if number == 1 else None) as server:
        assert client(server, timeout=0.2).reply(HELLO, 0).text == "HELLO"
        release.set()
    assert len(server.bodies) == 2


def test_the_length_limit_is_told_apart():
    with serving(fault=lambda number, body: reply("so far", "length")) as server:
        answer = client(server).reply(HELLO, 0)
    assert (answer.text, answer.finished) == ("so far", False)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((404, '{"error": "no model some-model here"}'), r"HTTP 404 .*no model some-model here"),
        (reply("4", reasoning_content="2 + 2"), "without a reasoning parser"),
        (reply(None), "holds no text"),
        (reply(None, "tool_calls", tool_calls=[{"id": 1}]), "without a parser of tool calls"),
    ],
)
def test_a_refusal_ends_the_run_with_the_row_and_what_was_said(fault, message):
    def refuse(number, body):
        return fault if body["messages"][-1]["content"] == "turn 0 of 2" else None

    done = []
    with serving(fault=refuse) as server:
        groups = Clients(client(server), concurrency=1).answer(asked(5))
        with pytest.raises(ServerError, match="row 'r2': .*" + message):
            done.extend(row.row["id"] for group in groups for row in group)
    assert done == ["r0", "r1"]
    assert len(server.bodies) == 3  # nothing more was asked


def test_a_server_that_stays_away_ends_the_run_within_the_patience():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        gone = client(f"http://127.0.0.1:{taken.getsockname()[1]}", patience=0.05)
        with pytest.raises(ServerError, match=r"row 'r\d': .* gave no answer in \d+ tries within .*refused"):
            list(Clients(gone, concurrency=3).answer(asked(6)))


def test_waits_grow_from_their_upper_half_and_obey_the_server(monkeypatch):
    waits = []
    server = client("http://host", first_wait=1.0, patience=1000.0)
    monkeypatch.setattr(server._closed, "wait", lambda seconds: waits.append(seconds) or len(waits) == 9)
    monkeypatch.setattr(server, "_post", _always_again)
    with pytest.raises(ServerError, match="in 9 tries"):
        server.reply(HELLO, 0)
    for number, wait in enumerate(waits):
        longest = min(30.0, 2.0**number)
        assert max(7.0, longest / 2) <= wait <= max(7.0, longest)


def _always_again(body):
    from specdraft.regenerate.server import _Again

    raise _Again("busy", 7.0)


def test_turns_are_asked_in_order_with_the_answers_before():
    with serving() as server:
        found = everything(Clients(client(server), concurrency=4), asked(9, turns=3))
    for i in range(9):
        texts = [message["content"] for message in found[f"r{i}"]["messages"]]
        assert texts == [text for j in range(3) for text in (f"turn {j} of {i}", f"TURN {j} OF {i}")]
    assert len(server.bodies) == 27


def test_seeds_depend_on_row_and_turn_alone():
    def seeds(concurrency, order):
        with serving() as server:
            everything(Clients(client(server, SamplingParams(1.0)), concurrency, seed=5), order(asked(6, turns=2)))
        return {body["messages"][-1]["content"]: body["seed"] for body in server.bodies}

    first = seeds(1, list)
    assert first == seeds(3, lambda rows: rows[::-1])
    assert len(set(first.values())) == 12


def test_a_server_that_is_restarted_on_the_same_port_is_survived():
    reached, servers = threading.Event(), []

    def fault(number, body):
        if number >= 5:
            reached.set()
            servers[0].dead = True  # everything from here on breaks off

    servers.append(FakeChat(fault=fault))
    port = servers[0].server_address[1]
    refused = threading.Event()

    def restart():
        reached.wait(20)
        servers[0].kill()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
        refused.set()
        servers.append(FakeChat(port))

    thread = threading.Thread(target=restart)
    thread.start()
    found = everything(Clients(client(servers[0]), concurrency=3), asked(12, turns=2))
    thread.join()
    servers[1].kill()
    assert refused.is_set()
    assert sorted(found) == sorted(f"r{i}" for i in range(12))
    assert all(row["messages"][-1]["content"] == f"TURN 1 OF {name[1:]}" for name, row in found.items())
    answered = [body["messages"][-1]["content"] for body in servers[1].bodies]
    assert len(set(answered)) == len(answered)  # the second server was asked nothing twice


def test_a_row_that_the_server_does_not_take_is_set_aside():
    def refuse(number, body):
        return (400, "too many tokens") if body["messages"][-1]["content"] in ("turn 0 of 2", "turn 1 of 3") else None

    rows = asked(5, turns=2)
    with serving(fault=refuse) as server:
        done = [row for group in Clients(client(server), concurrency=2).answer(rows) for row in group]
    assert len(done) == 5
    assert [len(row.answers) for row in rows] == [2, 2, 0, 1, 2]
    assert "HTTP 400 Bad Request: too many tokens" in rows[2].refused
    assert rows[3].answered()["unanswered"] == [{"role": "user", "content": "turn 1 of 3"}]
    assert not rows[4].refused


def test_a_server_that_takes_no_row_ends_the_run():
    with serving(fault=lambda number, body: (422, "tool_choice?")) as server:
        with pytest.raises(ServerError, match=r"HTTP 422 .*tool_choice\?.* all 8 rows so far"):
            list(Clients(client(server), concurrency=1).answer(asked(20)))
        assert len(server.bodies) == 8
        server.bodies.clear()
        with pytest.raises(ServerError, match="all 20 rows so far"):  # refusals overtake answers in flight
            list(Clients(client(server), concurrency=10).answer(asked(40)))
        server.bodies.clear()
        assert len([row for group in Clients(client(server), 1).answer(asked(20), done=1) for row in group]) == 20


def test_refused_rows_are_known_to_the_next_run(tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("".join(json.dumps({"id": i, "prompt": f"row {i}"}) + "\n" for i in range(16)))
    down = [True]

    def fault(number, body):
        row = int(body["messages"][-1]["content"].split()[1])
        if 2 <= row < 12:
            return 400, "too many tokens"
        return (404, "gone") if row == 14 and down[0] else None

    with serving(fault=fault) as server:
        options = {"endpoint": server.url, "model": "some-model", "concurrency": 1}
        with pytest.raises(ServerError, match="row '14'"):
            regenerate(str(prompts), str(out), **options)
        down[0] = False
        before = len(server.bodies)
        with pytest.warns(UserWarning, match=r"10 of 16 rows could not be answered; 0 of them .*the first, '2'"):
            regenerate(str(prompts), str(out), **options)
        assert [body["messages"][-1]["content"] for body in server.bodies[before:]] == ["row 14", "row 15"]
        with pytest.warns(UserWarning, match="10 of 16"):
            regenerate(str(prompts), str(out), **options, extend=True)
        assert len(server.bodies) == before + 12
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [0, 1, 12, 13, 14, 15]


def test_tools_are_described_and_calls_are_not_parsed():
    tools = [{"type": "function", "function": {"name": "clock"}}]
    row = conversation({"id": 1, "prompt": "what time is it?", "tools": tools}, "f:1")
    with serving() as server:
        list(Clients(client(server), concurrency=1).answer([row]))
    assert server.bodies[0]["tools"] == tools
    assert server.bodies[0]["tool_choice"] == "none"
    assert row.answered()["tools"] == tools


def test_the_command_leaves_out_what_the_server_refused(tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("".join(json.dumps({"id": i, "prompt": f"prompt {i}"}) + "\n" for i in range(12)))
    broken = [True]

    def fault(number, body):
        return (400, "no") if broken[0] and body["messages"][0]["content"] == "prompt 7" else None

    with serving(fault=fault) as server:
        options = {"endpoint": server.url, "model": "some-model", "concurrency": 2}
        with pytest.warns(UserWarning, match=r"1 of 12 rows could not be answered; .*the first, '7': .*HTTP 400"):
            regenerate(str(prompts), str(out), **options)
        assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [*range(7), *range(8, 12)]
        broken[0] = False
        before = len(server.bodies)
        regenerate(str(prompts), str(out), **options, extend=True)
        assert len(server.bodies) - before == 1
        with pytest.raises(ValueError, match="--model NAME"):
            regenerate(str(prompts), str(out), endpoint=server.url)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == [{"id": i, "prompt": f"prompt {i}", "response": f"PROMPT {i}"} for i in range(12)]
    with pytest.raises(ValueError, match="--endpoint"):
        regenerate(str(prompts), str(out), model="some-model")
