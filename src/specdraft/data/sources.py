"""Where rows come from: JSONL, JSON and Parquet files, packaged files, and data sets of the Hugging Face hub."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

Record = tuple[str, Any]  # (place for messages, such as "train.jsonl:12", and the decoded value)

PACKAGED = {"smollm2-chat": {"train": "train.jsonl.xz", "heldout": "heldout.jsonl.xz"}}
_SUFFIXES = (".jsonl", ".json", ".parquet")
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}


def packaged_folder() -> Path:
    """Folder of the packaged data files."""
    return Path(str(files("specdraft.data") / "embedded"))


def read_records(
    source: str, part: Literal["train", "heldout"] = "train", folder: Path | None = None
) -> Iterator[Record]:
    """Decode the records of one source, one at a time.

    Args:
        source: A packaged name (``smollm2-chat``), a file (``.jsonl``, ``.json``, ``.parquet``, the first two also with
            ``.gz`` or ``.xz``), or a data set of the hub as ``owner/name`` or ``owner/name:split``.
        part: Which packaged file a packaged name means.
        folder: Folder of the packaged files (default: those of the installed package).

    Yields:
        The place of the record, for messages, and its decoded value.

    Raises:
        FileNotFoundError: If the source is no file and no data set that can be reached.
        ValueError: If a file is broken, with file and line.
    """
    if source in PACKAGED:
        path = (folder or packaged_folder()) / PACKAGED[source][part]
        if not path.is_file():
            raise FileNotFoundError(f"the packaged data {source!r} lacks {path}; reinstall specdraft")
        return _read_file(path)
    path = Path(source).expanduser()
    if path.is_file():
        return _read_file(path)
    if path.is_dir():
        raise ValueError(f"{source!r} is a folder; name its files one by one: {_listing(path)}")
    if _kind(path) or source.startswith((".", "/", "~")):
        raise FileNotFoundError(f"data file {source!r} does not exist (looked in {Path.cwd()})")
    return _read_hub(source)


def _listing(folder: Path) -> str:
    names = sorted(str(p) for p in folder.iterdir() if _kind(p))
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "") or "it holds no data file"


def _kind(path: Path) -> str:
    """``.jsonl``, ``.json`` or ``.parquet`` of a file name, whether compressed or not; empty for another one."""
    name = path.with_suffix("") if path.suffix in _OPENERS else path
    return name.suffix if name.suffix in _SUFFIXES else ""


def _read_file(path: Path) -> Iterator[Record]:
    kind = _kind(path)
    if not kind:
        raise ValueError(
            f"cannot tell the format of {str(path)!r}; use .jsonl, .json or .parquet (.gz and .xz accepted)"
        )
    if kind == ".parquet":
        return _read_parquet(path)
    opener: Any = _OPENERS.get(path.suffix, open)
    return _read_jsonl(path, opener) if kind == ".jsonl" else _read_json(path, opener)


def _read_jsonl(path: Path, opener: Any) -> Iterator[Record]:
    # iterating a binary file splits on b"\n" alone; str.splitlines would also split inside strings, at U+2028 and more
    number = 0
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _decode(line, f"{path}:{number}")
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} is truncated or not compressed as its name says, after line {number}: {error}"
        ) from error


def _read_json(path: Path, opener: Any) -> Iterator[Record]:
    with opener(path, "rb") as file:
        data = file.read()
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # several values: JSON lines under another name
            yield from _read_jsonl(path, opener)
            return
        raise ValueError(f"{path}:{error.lineno}: broken JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error
    if isinstance(value, dict):
        value = value["data"] if isinstance(value.get("data"), list) else [value]
    if not isinstance(value, list):
        raise ValueError(f"{path} must hold a list of rows, got {type(value).__name__}")
    yield from ((f"{path}[{index}]", row) for index, row in enumerate(value))


def _decode(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: broken JSON at column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8: {error}") from error


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow.parquet as parquet  # a dependency of datasets; imported late because it is slow
    from pyarrow.lib import ArrowException

    index = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                yield f"{path}[{index}]", row
                index += 1
    except ArrowException as error:
        raise ValueError(f"{path} is no readable Parquet file: {error}") from error


def _read_hub(source: str) -> Iterator[Record]:
    from datasets import load_dataset

    name, _, split = source.partition(":")
    try:
        rows = load_dataset(name, split=split or "train")
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"data {source!r} is no file here, no packaged data ({', '.join(PACKAGED)}), and the hub gave none: "
            f"{type(error).__name__}: {error}. Check the name, or download it once while online"
        ) from error
    yield from ((f"{source}[{index}]", dict(row)) for index, row in enumerate(rows))
