"""One round at one block size: draft, correct, verify, move on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdraft.cache import KeyValueCache
from specdraft.decoding.confidence import offered
from specdraft.decoding.graphs import Stage
from specdraft.decoding.sampling import SamplingParams, to_probs
from specdraft.decoding.schedule import Schedule
from specdraft.decoding.verify import Rule, verify, verify_greedy
from specdraft.types import DecodingCorrector, DecodingDrafter, DecodingTarget, Head, Proposal, Verdict

# where the time of each stage is booked: what is written behind a verification is context of the drafter
PARTS = ("draft", "correct", "verify", "draft")


@dataclass
class RowState:
    """Device side of the rows, in buffers that stay.

    Anchor ``[N]``, tokens still to emit ``[N]`` (0 in an empty row), stop ids ``[N, S]`` padded with -1, all int64.
    """

    anchor: Tensor
    remaining: Tensor
    stops: Tensor

    @classmethod
    def empty(cls, schedule: Schedule, device: torch.device) -> RowState:
        """Buffers for the rows of a schedule."""
        zeros = torch.zeros(len(schedule.rows), dtype=torch.int64, device=device)
        return cls(zeros, zeros.clone(), zeros.new_full((len(zeros), schedule.stop_width), -1))

    def load(self, schedule: Schedule) -> None:
        """Put what the host knows of the rows onto the device."""
        device = self.anchor.device
        self.anchor.copy_(schedule.anchors(device))
        self.remaining.copy_(schedule.remaining(device))
        self.stops.copy_(schedule.stops(device))


def check_block_size(drafter: DecodingDrafter, block_size: int) -> int:
    """First slot that predicts.

    Raises:
        ValueError: If the block does not fit the drafter.
    """
    first = 0 if drafter.sample_from_anchor else 1
    if not first < block_size <= drafter.block_size:
        raise ValueError(
            f"block_size {block_size} must be in {first + 1}..{drafter.block_size}: a block needs a slot that "
            "predicts, and no more slots than the drafter was made for"
        )
    return first


@dataclass(frozen=True)
class Parts:
    """What takes part in every round and does not change while decoding."""

    target: DecodingTarget
    drafter: DecodingDrafter
    corrector: DecodingCorrector
    head: Head
    mask_token_id: int
    params: SamplingParams
    rule: Rule
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        vocabulary = self.target.spec.vocab_size
        if not 0 <= self.mask_token_id < vocabulary:
            raise ValueError(f"mask_token_id {self.mask_token_id} is outside the vocabulary 0..{vocabulary - 1}")
        if self.rule not in ("token", "block"):
            raise ValueError(f"rule {self.rule!r} is unknown; use 'token' or 'block'")


class Round:
    """Rounds of one block size, and what such a round leaves for its later stages.

    Args:
        parts: What takes part.
        block_size: Input slots of a block.

    Attributes:
        drafts: Drafts K of a round.
        kept: ``[N]`` int64, tokens that the round emits per row, 0 in an empty one.
        packet: ``[N, K + 4]`` int64: tokens, how many of them are kept, accepted length, most drafts that could be
            accepted.

    Raises:
        ValueError: If the block does not fit the drafter.
    """

    hidden: Tensor
    logits: Tensor
    proposal: Proposal
    limit: Tensor
    features: Tensor
    verdict: Verdict
    kept: Tensor
    packet: Tensor

    def __init__(self, parts: Parts, block_size: int) -> None:
        drafter, device = parts.drafter, parts.target.device
        self.first = check_block_size(drafter, block_size)
        self.parts = parts
        self.drafts = block_size - self.first
        self.masks = torch.full((1, block_size - 1), parts.mask_token_id, device=device)
        self.places = torch.arange(self.drafts + 1, device=device)

    def stages(self, rows: RowState, caches: tuple[KeyValueCache, KeyValueCache]) -> list[Stage]:
        """Draft, correct, verify and move ``rows`` on, one function each.

        The lengths of the caches are left to the caller, who learns their host-side bound from the packet.
        """
        cache, context = caches
        return [
            lambda: self._draft(rows, context),
            lambda: self._correct(rows),
            lambda: self._check(rows, cache),
            lambda: self._finish(rows, context),
        ]

    def _draft(self, rows: RowState, context: KeyValueCache) -> None:
        head = self.parts.head
        anchor = rows.anchor[:, None]
        block = torch.cat([anchor, self.masks.expand(len(anchor), -1)], 1)
        self.hidden = self.parts.drafter.draft(self.parts.target.embed(block), context)[:, self.first :]
        self.logits = head(self.hidden.to(head.weight.dtype))

    def _correct(self, rows: RowState) -> None:
        parts = self.parts
        self.proposal = parts.corrector.propose(
            self.hidden, self.logits, rows.anchor, parts.params.temperature, parts.generator, parts.head
        )

    def _check(self, rows: RowState, cache: KeyValueCache) -> None:
        target = self.parts.target
        room = (rows.remaining - 1).clamp(0, self.drafts)
        drafts, self.limit = offered(self.proposal, room, cache.static)
        out = target.forward(torch.cat([rows.anchor[:, None], drafts.tokens], 1), cache)
        assert out.hidden is not None
        assert out.features is not None
        self.features = out.features
        self.verdict = self._verify(target.head(out.hidden), drafts, self.limit)

    def _finish(self, rows: RowState, context: KeyValueCache) -> None:
        self.parts.drafter.extend(self.features, context)
        accepted = self.verdict.accepted
        fresh = self.verdict.next_token[:, None]
        tokens = torch.cat([self.proposal.tokens, fresh], 1).scatter(1, accepted[:, None], fresh)
        stopped = (tokens[..., None] == rows.stops[:, None]).any(-1)
        first_stop = torch.where(stopped, self.places, self.drafts).amin(-1)
        # an empty row stays where it is
        self.kept = torch.where(rows.remaining > 0, torch.minimum(accepted, first_stop) + 1, 0)
        self.packet = torch.cat([tokens, self.kept[:, None], accepted[:, None], self.limit[:, None]], 1)
        rows.anchor.copy_(self.verdict.next_token)
        rows.remaining.sub_(self.kept)

    def _verify(self, logits: Tensor, proposal: Proposal, limit: Tensor) -> Verdict:
        parts = self.parts
        if parts.params.greedy:
            return verify_greedy(logits, proposal.tokens, limit)
        p = to_probs(logits, parts.params)
        q = None if proposal.q is None else proposal.q.to(p.dtype)
        return verify(p, proposal.tokens, q, rule=parts.rule, generator=parts.generator, limit=limit)
