"""SIGKILL at random moments: no row is lost, none is there twice, and the bytes are those of an uninterrupted run."""

import json
from functools import partial

import pytest
from chat_fake import serving

from specdraft.regenerate import regenerate

pytestmark = pytest.mark.slow

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "red", "blue"]
ROWS = [
    {"id": i, "turns": [f"add {WORDS[i % 12]} and {WORDS[i // 12 % 12]}", "take the apple"][: 1 + i % 2]}
    for i in range(140)
]

# longer than the target's context, at once or in a later turn: neither may move the seeds of the others
LONG = [{"id": 3, "prompt": "one " * 300}, {"id": 5, "turns": ["add one", "two " * 300]}]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def read(folder, without=()):
    content = (folder / "out.jsonl").read_bytes()
    ids = [json.loads(line)["id"] for line in content.decode().splitlines()]
    assert ids == [row["id"] for row in ROWS if row["id"] not in without]
    return content


def nothing_twice(folder):
    part = folder / "out.jsonl.part.jsonl"
    lines = part.read_bytes().split(b"\n")[:-1] if part.exists() else []
    ids = [json.loads(line)["id"] for line in lines]
    assert len(set(ids)) == len(ids)


@pytest.mark.filterwarnings("ignore:2 of 140 rows could not be answered")
def test_the_engine_is_killed(kill_at_random, tmp_path, tiny_target):
    long = {row["id"]: row for row in LONG}
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(long.get(row["id"], row)) + "\n" for row in ROWS))

    def work(folder):
        if (folder / "out.jsonl").exists():
            return  # killed between writing the file and removing the partial one
        options = {"max_new_tokens": 12, "temperature": 1.0, "concurrency": 2, "device": "cpu"}
        regenerate(str(prompts), str(folder / "out.jsonl"), str(tiny_target), **options)

    assert kill_at_random(work, partial(read, without={3}), nothing_twice)


def test_the_client_of_a_server_is_killed(kill_at_random, prompts):
    with serving() as server:

        def work(folder):
            if not (folder / "out.jsonl").exists():
                regenerate(prompts, str(folder / "out.jsonl"), endpoint=server.url, model="some-model", concurrency=3)

        assert kill_at_random(work, read, nothing_twice)
        asked = [body["messages"][-1]["content"] for body in server.bodies]
    assert set(asked) >= {turn for row in ROWS for turn in row["turns"]}
