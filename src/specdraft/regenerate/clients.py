"""Many conversations with a server at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from specdraft.regenerate.conversations import Conversation
from specdraft.regenerate.server import ChatServer, RowRefused, ServerError

# a server that refused at least so many rows and has answered none refuses what is the same in all of them
_MOST_REFUSED = 8


class Clients:
    """Answer conversations through a server, each by one of ``concurrency`` threads, turn by turn.

    The seed of an answer depends on its row and turn alone, so that neither the order of the answers nor a resume
    changes what is asked for.

    Args:
        server: The server.
        concurrency: Requests in flight.
        seed: Seed of the sampling.
    """

    def __init__(self, server: ChatServer, concurrency: int, seed: int = 0) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.server = server
        self.concurrency = concurrency
        self.seed = seed
        self.note = ""
        self._refused, self._answered = 0, False
        # refusals are quicker than answers: those of the first requests say nothing yet
        self._most_refused = max(_MOST_REFUSED, 2 * concurrency)

    def answer(self, rows: Sequence[Conversation], done: int = 0) -> Iterator[list[Conversation]]:
        """Answer rows; yields those that have become ready, answered or refused, in any order.

        Args:
            rows: The rows.
            done: Number of rows that were answered before: the server takes some.

        Raises:
            ServerError: Naming the first row that failed, or one of the first if the server refuses every row; what the
                others had in flight is yielded before.
        """
        self._answered = done > 0
        waiting: SimpleQueue[Conversation] = SimpleQueue()
        ready: SimpleQueue[Conversation | Exception] = SimpleQueue()
        for row in rows:
            waiting.put(row)
        failed: list[Exception] = []

        def work() -> None:
            while not failed:
                try:
                    row = waiting.get_nowait()
                except Empty:
                    return
                try:
                    self._converse(row)
                    ready.put(row)
                except Exception as error:  # a thread must not take its error with it
                    failed.append(error)
                    self.server.close()
                    ready.put(error)

        # daemons: a program that is interrupted does not wait for requests in flight
        threads = [Thread(target=work, daemon=True) for _ in range(min(self.concurrency, len(rows)))]
        for thread in threads:
            thread.start()
        left = len(rows)
        try:
            while left and (not failed or any(thread.is_alive() for thread in threads) or not ready.empty()):
                group = _taken(ready)
                left -= len(group)
                if answered := [item for item in group if isinstance(item, Conversation)]:
                    yield answered
            if failed:
                raise failed[0]
        finally:
            failed.append(ServerError("stopped"))
            self.server.close()

    def _converse(self, row: Conversation) -> None:
        while (context := row.context()) is not None:
            seed = zlib.crc32(f"{self.seed}:{row.key}:{len(row.answers)}".encode()) >> 1
            try:
                row.answers.append(self.server.reply(context, seed, row.tools))
                self._answered = True
            except RowRefused as error:
                self._refused += 1
                if self._refused >= self._most_refused and not self._answered:
                    raise ServerError(f"row {row.name!r}: {error}. So were all {self._refused} rows so far") from error
                row.refused = str(error)
            except ServerError as error:
                raise ServerError(
                    f"row {row.name!r}: {error}. Finished answers are kept; the same command goes on with the rest"
                ) from error


def _taken(ready: SimpleQueue[Conversation | Exception]) -> list[Conversation | Exception]:
    """Whatever is ready, at least one unless nothing comes for a moment."""
    out: list[Conversation | Exception] = []
    try:
        out.append(ready.get(timeout=0.2))
        while True:
            out.append(ready.get_nowait())
    except Empty:
        return out
