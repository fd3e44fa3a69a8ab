"""Work that SIGKILL ends at random moments."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable
from pathlib import Path
from time import monotonic


def kill_at_random(
    folder: Path, work: Callable[[Path], None], result: Callable[[Path], object], check: Callable[[Path], None]
) -> int:
    """Run some work again and again in children that are killed, ``SPECDRAFT_KILLS`` times in all.

    Whenever the work comes to its end the result must be that of a run that was never killed.

    Args:
        folder: Where the folders of the work are made.
        work: Fills a folder; called again with it after a kill.
        result: Reads what the work made.
        check: Looks at what a killed child has left.

    Returns:
        The number of kills.
    """
    draw, kills, finished = random.Random(0), 0, 0
    wanted = int(os.environ.get("SPECDRAFT_KILLS", "5"))

    def child(place: Path, seconds: float | None) -> bool:
        process = multiprocessing.get_context("fork").Process(target=work, args=(place,))
        process.start()
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
            return False
        assert process.exitcode == 0
        return True

    whole = folder / "whole"
    whole.mkdir()
    start = monotonic()
    assert child(whole, None)
    seconds, expected = monotonic() - start, result(whole)
    while kills < wanted:
        place = folder / f"killed-{finished}"
        place.mkdir(exist_ok=True)
        if child(place, draw.uniform(0.0, seconds)):
            assert result(place) == expected
            finished += 1
        else:
            kills += 1
            check(place)
    last = folder / f"killed-{finished}"
    last.mkdir(exist_ok=True)
    assert child(last, None)
    assert result(last) == expected
    return kills
