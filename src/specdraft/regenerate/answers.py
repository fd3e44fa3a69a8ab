"""The file of answers: what is known survives a crash, nothing is lost and nothing twice."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from specdraft.commands import whole_lines
from specdraft.regenerate.conversations import conversation
from specdraft.scratch import scratch_of, sweep, write_json

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}


class AnswerFile:
    """Answers as JSON lines by the key of their row: a partial file while a run goes on, then the file itself.

    No answer that is known is dropped, also where a later call asks for fewer rows or for others. What the answers
    depend on stays beside the finished file, so that nothing else is mixed into it.

    Rows that are added together are kept together: beside the partial file lies a note that says how many of its bytes
    are good. What a crash left behind them is cut off, so that a resumed run starts where a group ended and samples
    what an uninterrupted one would have sampled.

    Rows that cannot be answered stand in the same note with the reason, so that a resumed run does not ask them again.

    Args:
        path: The finished file; ``.gz`` and ``.xz`` compress.
        settings: What the answers depend on, as builtins.
        extend: Keep the answers of a finished file.

    Raises:
        FileExistsError: If the file is finished and is not to be extended.
        ValueError: If an interrupted run, or the finished file, had other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any], extend: bool = False) -> None:
        self.path = path
        self._part = path.with_name(path.name + ".part.jsonl")
        self._note = self._part.with_suffix(".settings.json")
        self._finished_note = path.with_name(path.name + ".settings.json")
        self._settings = settings
        self.refused: dict[str, str] = {}
        lines = self._begun()
        if path.exists():
            if not extend:
                raise FileExistsError(f"{path} is finished; --extend keeps its answers, or name another file")
            if self._finished_note.exists():
                found = json.loads(self._finished_note.read_text(encoding="utf-8"))
                if found != settings:
                    raise ValueError(
                        f"{path} was answered with {found}, not {settings}; give the same settings, or another file"
                    )
            with _opened(path, path.suffix, "rt") as file:
                lines = file.read().split("\n") + lines  # not splitlines, which also splits inside of texts
        self._lines = {conversation(json.loads(line), str(path)).key: line for line in lines if line}
        self._part.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, f"{path.name}.*.tmp")
        self._file = self._part.open("ab")
        self._write_note()

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    @property
    def done(self) -> int:
        """Rows that are answered or refused."""
        return len(self._lines.keys() | self.refused.keys())

    def add(self, rows: dict[str, dict[str, Any]], refused: dict[str, str]) -> None:
        """Write a group to the disk, all of it or nothing.

        Args:
            rows: Rows with answers by key.
            refused: Why rows are not answered, or not to their end, by key.
        """
        self.refused.update(refused)
        lines = {key: json.dumps(row, ensure_ascii=False) for key, row in rows.items()}
        self._file.write("".join(line + "\n" for line in lines.values()).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._write_note()
        self._lines.update(lines)

    def finish(self, keys: Iterable[str]) -> None:
        """Write the file, and remove what was partial.

        Args:
            keys: Rows that were asked for, in the order of the file; other answers that are known follow.
        """
        scratch = scratch_of(self.path)
        with _opened(scratch, self.path.suffix, "wt") as packed:
            packed.writelines(self._lines[key] + "\n" for key in dict.fromkeys([*keys, *self._lines]))
        _synced(scratch)
        write_json(self._finished_note, self._settings)
        os.replace(scratch, self.path)
        _synced(self.path.parent)  # the partial file goes only when nothing can undo the renaming
        self._file.close()
        self._part.unlink()
        self._note.unlink(missing_ok=True)

    def _begun(self) -> list[str]:
        """Good lines of an interrupted run; the rest is cut off."""
        if self._note.exists() and self._part.exists():
            note = json.loads(self._note.read_text(encoding="utf-8"))
            found = note.get("settings", note)
            if self._part.stat().st_size and found != self._settings:
                raise ValueError(
                    f"{self._part} was begun with {found}, not {self._settings}; give the same settings, or delete it "
                    "to start anew"
                )
            if self._part.stat().st_size:  # else nothing was answered, and another try may fare better
                self.refused = note.get("refused", {})
            if "bytes" in note and note["bytes"] < self._part.stat().st_size:
                os.truncate(self._part, note["bytes"])
        return whole_lines(self._part)

    def _write_note(self) -> None:
        write_json(self._note, {"settings": self._settings, "bytes": self._file.tell(), "refused": self.refused})


def _synced(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _opened(path: Path, suffix: str, mode: str) -> Iterator[IO[str]]:
    with _OPENERS.get(suffix, open)(path, mode, encoding="utf-8") as file:
        yield file
