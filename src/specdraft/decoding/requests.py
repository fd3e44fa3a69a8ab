"""What is asked of a decoding loop and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from torch import Tensor

from specdraft.types import RoundTiming


@dataclass
class Request:
    """One prompt to continue.

    Args:
        prompt_ids: Token ids, a list or a ``[L]`` tensor, not empty.
        max_new_tokens: Most tokens to emit, at least 1.
        stop_ids: Ids that end the continuation; the stop token itself is emitted.
        workload: Kind of the prompt, such as its family; a policy may choose the block size by it.
    """

    prompt_ids: list[int] | Tensor
    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()
    workload: str = ""


@dataclass
class RequestResult:
    """Continuation of one request.

    The first token comes from the prefill, every round adds its accepted drafts and one more token, therefore
    ``len(tokens) == 1 + sum(accepted) + rounds``. Where a stop token lies *inside* the accepted prefix it takes the
    place of the round's last token and what follows it is not counted; drafts that could not count (behind that
    stop, or past ``max_new_tokens``) are not counted as drafted either.

    Attributes:
        tokens: Emitted ids, a stop token included, nothing behind it.
        accepted: Accepted drafts of each round (zeros for the autoregressive loop).
        drafted: Drafts of each round that could have been accepted.
        seconds: Wall time from entering a slot to the last token, prefill included.
        prompt_tokens: Length of the prompt.
        arrivals: Seconds from entering a slot to when the host had the tokens of the prefill and of each round.
        waited: Seconds behind its first token in which it stood still because others were prefilled.
    """

    tokens: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    seconds: float = 0.0
    prompt_tokens: int = 0
    arrivals: list[float] = field(default_factory=list)
    waited: float = 0.0

    @property
    def decoding_seconds(self) -> float:
        """Wall time of its own rounds: behind its first token, without what it waited for prefills."""
        return self.arrivals[-1] - self.arrivals[0] - self.waited if self.arrivals else 0.0

    @property
    def rounds(self) -> int:
        """Target forwards that this request took part in after its prefill."""
        return len(self.accepted)


OnFinish: TypeAlias = Callable[[int, RequestResult], None]


class RoundLog(NamedTuple):
    """One batched round.

    Attributes:
        block_size: Input slots of its blocks, 0 where nothing is drafted.
        rows: Requests in flight.
        tokens: Tokens that it emitted.
        seconds: Wall time, from choosing the block size to having handed the tokens out.
    """

    block_size: int
    rows: int
    tokens: int
    seconds: float


@dataclass
class DecodeResult:
    """Continuations of all requests and the time they took.

    Attributes:
        results: One per request, in the order of the requests.
        prefill_seconds: Wall time of all prefills, the first token of each request included.
        decode_seconds: Wall time of everything behind the prefills.
        timing: ``decode_seconds`` by part, summed over the batched rounds.
        steps: Batched target forwards; ``timing.total / steps`` is the latency of a round.
        log: One entry per batched round.
    """

    results: list[RequestResult]
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    timing: RoundTiming = field(default_factory=RoundTiming)
    steps: int = 0
    log: list[RoundLog] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """Rounds summed over the requests (a batched step counts once for each row in it)."""
        return sum(result.rounds for result in self.results)

    @property
    def emitted(self) -> int:
        """Emitted tokens of all requests, the first ones included."""
        return sum(len(result.tokens) for result in self.results)

    @property
    def mat_drafts(self) -> float:
        """Mean accepted drafts per round, pooled: sum over rounds / rounds; 0 without rounds."""
        return sum(sum(result.accepted) for result in self.results) / self.rounds if self.rounds else 0.0

    @property
    def mat(self) -> float:
        """Mean tokens per round with the correction or bonus token, pooled; 0 without rounds."""
        return self.mat_drafts + 1 if self.rounds else 0.0

    @property
    def mat_prompt_mean(self) -> float:
        """Mean over the requests of each one's own tokens per round; requests without rounds are left out."""
        means = [sum(result.accepted) / result.rounds + 1 for result in self.results if result.rounds]
        return sum(means) / len(means) if means else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens that decoding emitted per second of decoding; prefills and their first tokens are left out."""
        return (self.emitted - len(self.results)) / self.decode_seconds if self.decode_seconds else 0.0
