"""JSON lines of what a benchmark has finished, so that an interrupted one can go on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specdraft.commands import whole_lines
from specdraft.decoding import RequestResult


class Journal:
    """One line per finished prompt and per finished cell, each written whole and flushed at once.

    Args:
        path: File to write; its folder is made.
        settings: What the results depend on, as builtins. The first line holds them.
        resume: Continue an existing file.

    Raises:
        FileExistsError: If there is a file and ``resume`` is false.
        ValueError: If the file was written with other settings; the message names them.
    """

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not resume:
            raise FileExistsError(
                f"{path} holds the results of an earlier run; continue it with --resume, or choose another --out"
            )
        self._requests: dict[str, dict[int, RequestResult]] = {}
        self._totals: dict[str, dict[str, Any]] = {}
        settings = json.loads(json.dumps(settings))
        lines = [json.loads(line) for line in whole_lines(path)]
        if lines:
            _same_settings(path, lines[0]["settings"], settings)
        for line in lines[1:]:
            if "totals" in line:
                self._totals[line["cell"]] = line["totals"]
            else:
                self._requests.setdefault(line["cell"], {})[line["index"]] = RequestResult(**line["result"])
        self._file = path.open("a", encoding="utf-8")
        if not lines:
            self._write({"settings": settings})

    def finished(self, cell: str) -> dict[int, RequestResult]:
        """Results of a cell by index of the prompt."""
        return dict(self._requests.get(cell, {}))

    def totals(self, cell: str) -> dict[str, Any] | None:
        """Totals of a cell, None if it did not end."""
        return self._totals.get(cell)

    def request(self, cell: str, index: int, result: RequestResult) -> None:
        """Keep the result of one prompt."""
        self._write({"cell": cell, "index": index, "result": asdict(result)})

    def close(self, cell: str, totals: dict[str, Any]) -> None:
        """Mark a cell as ended."""
        self._totals[cell] = totals
        self._write({"cell": cell, "totals": totals})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _same_settings(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name in {**found, **wanted}:
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"{path} was written with {name} {found.get(name)}, not {wanted.get(name)}; resume with the same "
                "options, or choose another --out"
            )
