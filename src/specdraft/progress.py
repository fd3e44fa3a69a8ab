"""How far a long command is, and how long it will still take, on a terminal or in a log file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import TextIO

from tqdm import tqdm

_LINE = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class Progress:
    """A bar on a terminal; elsewhere a line at the start, at the end and every so many seconds between.

    A bar that rewrites its line would make one endless line of a log file.

    Args:
        total: Units of work, those done before included.
        done: Units that were done before.
        name: What is going on.
        unit: Name of a unit.
        shown: Whether anything is shown; only one of several processes should.
        seconds: Time between two lines of a log.
        stream: Where to write; None is standard error.
        clock: Source of seconds.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        *,
        name: str,
        unit: str = "row",
        shown: bool = True,
        seconds: float = 30.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.total, self.done, self.name, self.unit = total, done, name, unit
        self._stream = stream or sys.stderr
        self._initial, self._seconds, self._clock = done, seconds, clock
        self._began = self._said = clock()
        self._note = ""
        terminal = shown and self._stream.isatty()
        self._bar = (
            tqdm(total=total, initial=done, desc=name, unit=unit, file=self._stream, dynamic_ncols=True)
            if terminal
            else None
        )
        self._silent = terminal or not shown
        self._say()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._said_of != self.done:
            self._say()

    def update(self, units: int, note: str = "") -> None:
        """Count finished units.

        Args:
            units: How many more are done.
            note: Shown behind the rate.
        """
        self.done += units
        self._note = note
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(units)
        elif self._clock() - self._said >= self._seconds:
            self._say()

    def _say(self) -> None:
        self._said, self._said_of = self._clock(), self.done
        if self._silent:
            return
        meter = tqdm.format_meter(
            self.done,
            self.total,
            self._said - self._began,
            prefix=self.name,
            unit=self.unit,
            initial=self._initial,
            postfix=self._note,
            bar_format=_LINE,
        )
        print(meter, file=self._stream, flush=True)
