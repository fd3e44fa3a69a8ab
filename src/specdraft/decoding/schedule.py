"""Which request sits in which row of the batch; everything here lives on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter

import torch
from torch import Tensor

from specdraft.decoding.requests import OnFinish, Request, RequestResult
from specdraft.types import TargetSpec

# padded prompt tokens of one prefill: bounds the memory of features and activations when many slots open at once
PREFILL_TOKENS = 16384


class Row:
    """A request while it occupies a row.

    Args:
        index: Place of the request in the input.
        request: The request.
    """

    def __init__(self, index: int, request: Request) -> None:
        self.index = index
        self.prompt = torch.as_tensor(request.prompt_ids, dtype=torch.int64, device="cpu").flatten()
        self.limit = request.max_new_tokens
        self.stops = frozenset(int(token) for token in request.stop_ids)
        self.workload = request.workload
        self.result = RequestResult(prompt_tokens=len(self.prompt))
        self.started = 0.0
        self.prefilled = 0.0  # the schedule's prefill seconds when its own prefill was over

    @property
    def length(self) -> int:
        """Verified tokens whose keys and values are cached: the anchor's position."""
        return len(self.prompt) + len(self.result.tokens) - 1

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.limit - len(self.result.tokens)


class Schedule:
    """Queue of waiting requests and the rows that work on the others.

    Args:
        requests: What to decode.
        spec: The target, to refuse what it cannot hold.
        concurrency: Most requests at a time.
        on_finish: Called with index and result whenever a request ends.

    Raises:
        ValueError: Naming the request that cannot be decoded.
    """

    def __init__(
        self, requests: list[Request], spec: TargetSpec, concurrency: int, on_finish: OnFinish | None = None
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.queue = deque(Row(index, request) for index, request in enumerate(requests))
        for row in self.queue:
            _check(row, spec)
        self.longest = max((len(row.prompt) + row.limit for row in self.queue), default=0)
        self.stop_width = max((len(row.stops) for row in self.queue), default=0) or 1
        self.rows: list[Row | None] = [None] * min(concurrency, len(requests))
        self.results = [row.result for row in self.queue]
        self._on_finish = on_finish
        self._prefill_seconds = 0.0

    @property
    def live(self) -> list[Row]:
        """The rows that are not empty."""
        return [row for row in self.rows if row is not None]

    @property
    def has_gaps(self) -> bool:
        """Whether a row is empty."""
        return any(row is None for row in self.rows)

    def live_row(self, place: int) -> Row:
        """The request that sits in a row.

        Raises:
            ValueError: If the row is empty.
        """
        row = self.rows[place]
        if row is None:
            raise ValueError(f"row {place} is empty")
        return row

    def refill(self, load: Callable[[list[int], list[Tensor]], list[int]]) -> None:
        """Fill empty rows until the queue or the gaps end.

        Args:
            load: Prefills prompts into the rows at the given places, returns their first new tokens.
        """
        while (taken := self._take())[0]:
            places, fresh = taken
            began = perf_counter()
            tokens = load(places, [row.prompt for row in fresh])
            self._prefill_seconds += perf_counter() - began
            for row, place, token in zip(fresh, places, tokens, strict=True):
                row.prefilled = self._prefill_seconds
                self.emit(place, [token])

    def _take(self) -> tuple[list[int], list[Row]]:
        """Move waiting requests into empty rows, as many as one prefill should hold; ``([], [])`` when none fits."""
        places: list[int] = []
        taken: list[Row] = []
        width = 0
        for place, row in enumerate(self.rows):
            if row is not None or not self.queue:
                continue
            width = max(width, len(self.queue[0].prompt))
            if taken and width * (len(taken) + 1) > PREFILL_TOKENS:
                break
            fresh = self.queue.popleft()
            fresh.started = perf_counter()
            self.rows[place] = fresh
            places.append(place)
            taken.append(fresh)
        return places, taken

    def emit(self, place: int, tokens: list[int], accepted: int | None = None, drafted: int = 0) -> bool:
        """Record what one round gave a row; true if the request ended, which empties the row.

        Args:
            place: Index of the row.
            tokens: Emitted ids, cut behind a stop token and at the limit already.
            accepted: Accepted drafts that were counted, None for the prefill, which is no round.
            drafted: Drafts that could have been accepted.
        """
        row = self.live_row(place)
        row.result.tokens += tokens
        row.result.arrivals.append(perf_counter() - row.started)
        if accepted is not None:
            row.result.accepted.append(accepted)
            row.result.drafted.append(drafted)
        if row.remaining > 0 and tokens[-1] not in row.stops:
            return False
        row.result.seconds = row.result.arrivals[-1]
        row.result.waited = self._prefill_seconds - row.prefilled
        self.rows[place] = None
        if self._on_finish is not None:
            self._on_finish(row.index, row.result)
        return True

    @property
    def extent(self) -> int:
        """Longest row in cached tokens; 0 without rows."""
        return max((row.length for row in self.live), default=0)

    def compact(self) -> list[int]:
        """Drop the empty rows; the former indices of those that stay."""
        kept = [place for place, row in enumerate(self.rows) if row is not None]
        self.rows = [self.rows[place] for place in kept]
        return kept

    def anchors(self, device: torch.device) -> Tensor:
        """Last verified token ``[N]`` of every row, 0 where it is empty."""
        tokens = [0 if row is None else row.result.tokens[-1] for row in self.rows]
        return torch.tensor(tokens, dtype=torch.int64, device=device)

    def remaining(self, device: torch.device) -> Tensor:
        """Tokens ``[N]`` that every row may still emit, 0 where it is empty."""
        counts = [0 if row is None else row.remaining for row in self.rows]
        return torch.tensor(counts, dtype=torch.int64, device=device)

    def stops(self, device: torch.device) -> Tensor:
        """Stop ids ``[N, S]`` of every row, padded with -1; S is that of the request with most."""
        ids = [sorted(row.stops) if row is not None else [] for row in self.rows]
        padded = [own + [-1] * (self.stop_width - len(own)) for own in ids]
        return torch.tensor(padded, dtype=torch.int64, device=device)


def check_requests(requests: Sequence[Request], spec: TargetSpec) -> None:
    """Refuse what a target cannot decode, before any of it is decoded.

    Args:
        requests: What is to be decoded.
        spec: The target.

    Raises:
        ValueError: Naming the request, by its place in ``requests``, and the reason.
    """
    for index, request in enumerate(requests):
        _check(Row(index, request), spec)


def _check(row: Row, spec: TargetSpec) -> None:
    length = len(row.prompt)
    if length == 0:
        raise ValueError(f"request {row.index} has an empty prompt; give it at least one token")
    if row.limit < 1:
        raise ValueError(f"request {row.index}: max_new_tokens must be at least 1, got {row.limit}")
    if length + row.limit > spec.max_position_embeddings:
        raise ValueError(
            f"request {row.index}: prompt of {length} + max_new_tokens {row.limit} exceeds the "
            f"{spec.max_position_embeddings} positions of {spec.name!r}; shorten one of them"
        )
    low, high = int(row.prompt.min()), int(row.prompt.max())
    if low < 0 or high >= spec.vocab_size:
        raise ValueError(
            f"request {row.index}: prompt id {low if low < 0 else high} is outside the vocabulary "
            f"0..{spec.vocab_size - 1} of {spec.name!r}; tokenise with the target's tokenizer"
        )
