import gzip
import json
import lzma

import pytest
from data_fakes import write_jsonl

from specdraft.data.rows import parse_row, read_rows
from specdraft.data.selection import at_most, by_family, split
from specdraft.data.sources import read_records

PAIR = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "value",
    [
        {"messages": PAIR},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"prompt": "a", "response": "b"},
    ],
)
def test_every_form_gives_the_same_messages(value):
    row = parse_row({**value, "id": 7, "family": "math"}, "here:1")
    assert list(row.messages) == PAIR
    assert (row.id, row.family, row.where) == ("7", "math", "here:1")


def test_rows_without_an_id_are_named_by_content():
    first, second = parse_row({"messages": PAIR}, "x:1"), parse_row({"prompt": "a", "response": "b"}, "x:2")
    assert first.id == second.id != parse_row({"prompt": "a", "response": "c"}, "x:3").id


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "x:9: a row must be an object, got list"),
        ({"text": "a"}, "x:9: a row needs 'messages'.*it has the fields text"),
        ({"prompt": "a"}, "x:9: 'prompt' without 'response'"),
        ({"prompt": ["a"], "response": "b"}, "x:9: 'prompt' must be a string, got list"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "x:9: message 0 has the unknown role 'robot'"),
        ({"messages": [{"role": "user"}]}, "x:9: message 0 has no 'content'"),
        ({"conversations": [{"from": "cat", "value": "a"}]}, "x:9: turn 0 is from 'cat'"),
        ({"prompt": "a", "response": "b", "family": 3}, "x:9: 'family' must be a string, got 3"),
        ({"prompt": "a", "response": "b", "prompt_ids": [1]}, "x:9: 'prompt_ids' needs 'response_ids'"),
        ({"prompt": "a", "response": "b", "response_ids": [1.5]}, "x:9: 'response_ids' must be a list of token ids"),
    ],
)
def test_bad_rows_name_their_place(value, message):
    with pytest.raises(ValueError, match=message):
        parse_row(value, "x:9")


def test_a_broken_line_is_reported_with_file_and_line(tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b'{"prompt": "a", "response": "b"}\n\n{"prompt": "a", "resp\n')
    with pytest.raises(ValueError, match=r"broken\.jsonl:3: broken JSON at column 22"):
        list(read_rows(str(path)))
    path.write_bytes(b'{"prompt": "\xff", "response": "b"}\n')
    with pytest.raises(ValueError, match=r"broken\.jsonl:1: not UTF-8"):
        list(read_rows(str(path)))


def test_only_line_feeds_end_a_line(tmp_path):
    text = "a\u2028b\x85c\x0bd"
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"prompt": text, "response": "r"}, ensure_ascii=False).replace("\\u000b", "\x0b") + "\n")
    with pytest.raises(ValueError, match=r"lines\.jsonl:1: broken JSON"):  # a raw control character, still on line 1
        list(read_rows(str(path)))
    path.write_text(json.dumps({"prompt": text, "response": "r"}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert next(read_rows(str(path))).messages[0]["content"] == text


def test_formats_and_compression_agree(tmp_path):
    from datasets import Dataset

    rows = [{"id": str(i), "messages": PAIR, "family": "f"} for i in range(3)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(lines))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.json").write_bytes(lines)
    Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    names = ["a.jsonl", "a.jsonl.gz", "a.jsonl.xz", "a.json", "b.json", "a.parquet"]
    read = [[(r.id, r.family, r.messages) for r in read_rows(str(tmp_path / name))] for name in names]
    assert read[0][2] == ("2", "f", tuple(PAIR))
    assert all(other == read[0] for other in read)
    assert len(list(read_rows([str(tmp_path / name) for name in names]))) == 18


def test_a_cut_archive_is_reported(tmp_path):
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a", "response": "b"}\n' * 999)[:-20])
    with pytest.raises(ValueError, match=r"cut\.jsonl\.gz is truncated"):
        list(read_rows(str(path)))


def test_sources_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"nothing\.jsonl' does not exist"):
        list(read_records("nothing.jsonl"))
    with pytest.raises(ValueError, match="is a folder"):
        list(read_records(str(tmp_path)))
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="cannot tell the format"):
        list(read_records(str(tmp_path / "a.txt")))
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=r"owner/missing-data.*packaged data \(smollm2-chat\)"):
        list(read_records("owner/missing-data"))


def test_packaged_names_resolve_to_their_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="smollm2-chat"):
        list(read_rows("smollm2-chat", folder=tmp_path))
    for part in ("train", "heldout"):
        line = json.dumps({"id": part, "family": "f", "prompt": "a", "response": "b"}) + "\n"
        (tmp_path / f"{part}.jsonl.xz").write_bytes(lzma.compress(line.encode()))
    assert [row.id for row in read_rows("smollm2-chat", "train", tmp_path)] == ["train"]
    assert [row.id for row in read_rows("smollm2-chat", "heldout", tmp_path)] == ["heldout"]


def rows(count, start=0):
    return [parse_row({"id": f"r{i}", "prompt": "a", "response": "b"}, f"x:{i}") for i in range(start, start + count)]


def test_splits_are_disjoint_complete_and_stable():
    train, val = split(rows(400), 0.1)
    names = {row.id for row in train}, {row.id for row in val}
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 400
    assert 20 < len(val) < 70
    # a row stays on its side when others come, or when the order changes
    grown_train, grown_val = split(rows(800)[::-1], 0.1)
    assert names[0] <= {row.id for row in grown_train}
    assert names[1] <= {row.id for row in grown_val}


def test_a_small_data_set_still_holds_one_row_out():
    assert [len(part) for part in split(rows(2), 1e-6)] == [1, 1]
    assert [len(part) for part in split(rows(2), 0.0)] == [2, 0]
    assert [len(part) for part in split(rows(1), 1e-6)] == [1, 0]


def test_a_larger_subset_is_a_superset():
    few, more = ([row.id for row in at_most(rows(50), count)] for count in (10, 30))
    assert len(few) == 10
    assert set(few) < set(more)
    assert few == sorted(few, key=lambda name: int(name[1:]))
    assert few != [f"r{i}" for i in range(10)]


def test_unknown_families_are_refused(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "response": "b", "family": name} for name in "xyx"])
    read = list(read_rows(path))
    assert len(by_family(read, ["x"])) == 2
    with pytest.raises(ValueError, match="no row is of family 'z'; there are 'x', 'y'"):
        by_family(read, ["z"])
