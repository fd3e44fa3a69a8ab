"""JSON lines of what a benchmark has finished, so that an interrupted one can go on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specdraft.commands import whole_lines
from specdraft.decoding import DecodeResult, RequestResult, RoundLog
from specdraft.types import RoundTiming


@dataclass(frozen=True)
class Share:
    """What decoding consecutive prompts took, as builtins.

    Attributes:
        prefill_seconds: Wall time of the prefills.
        decode_seconds: Wall time of everything behind them.
        timing: The same by part of a round.
        steps: Batched target forwards.
        log: Block size, rows, tokens and seconds of every round; medians over shares need all of them.
        peak_memory_mib: Peak memory, None where it cannot be told.
        memory_kind: What memory was measured.
    """

    prefill_seconds: float
    decode_seconds: float
    timing: dict[str, float]
    steps: int
    log: list[list[float]]
    peak_memory_mib: float | None
    memory_kind: str

    @classmethod
    def of(cls, out: DecodeResult, peak_memory_mib: float | None, memory_kind: str) -> Share:
        """What a decode took."""
        log = [list(entry) for entry in out.log]
        seconds = (out.prefill_seconds, out.decode_seconds)
        return cls(*seconds, asdict(out.timing), out.steps, log, peak_memory_mib, memory_kind)

    def timed(self) -> DecodeResult:
        """A decode without its results."""
        log = [RoundLog(int(block), int(rows), int(tokens), seconds) for block, rows, tokens, seconds in self.log]
        return DecodeResult([], self.prefill_seconds, self.decode_seconds, RoundTiming(**self.timing), self.steps, log)


class Journal:
    """One line per finished prompt, share and cell, each written whole and flushed at once.

    A prompt that is decoded again, since its share was interrupted, has a second line, which counts.

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
        self._shares: dict[tuple[str, int, int], Share] = {}
        self._totals: dict[str, dict[str, Any]] = {}
        settings = json.loads(json.dumps(settings))
        lines = [json.loads(line) for line in whole_lines(path)]
        if lines:
            _same_settings(path, lines[0]["settings"], settings)
        for line in lines[1:]:
            if "totals" in line:
                self._totals[line["cell"]] = line["totals"]
            elif "share" in line:
                self._shares[line["cell"], line["start"], line["stop"]] = Share(**line["share"])
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
        self._requests.setdefault(cell, {})[index] = result
        self._write({"cell": cell, "index": index, "result": asdict(result)})

    def share(self, cell: str, places: range) -> Share | None:
        """What prompts at consecutive indices took, None if they did not all end in one go."""
        return self._shares.get((cell, places.start, places.stop))

    def finish(self, cell: str, places: range, share: Share) -> None:
        """Keep what prompts at consecutive indices took."""
        self._shares[cell, places.start, places.stop] = share
        self._write({"cell": cell, "start": places.start, "stop": places.stop, "share": asdict(share)})

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
