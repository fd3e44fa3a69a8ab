"""Shared data types and the contracts between the parts.

Shape legend, used by every docstring of the project:

====  ==========================================================================
N     rows: conversations of a training batch, or requests of a decoding batch
L     context length in tokens
A     anchors (blocks) per training row
B     block size: input slots of one block, the anchor included
K     drafts per round: ``B - 1``, or ``B`` with ``sample_from_anchor``
H     hidden size of the target
T     number of taps
V     vocabulary size of the target
D     rows of the draft vocabulary (``D == V`` without a reduced one)
====  ==========================================================================

``p`` is always the target's distribution, ``q`` the draft's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from specdraft.taps import check_taps, evenly_spaced_taps


@dataclass(frozen=True)
class TargetSpec:
    """What a drafter or corrector must know of its target; plain values, stored in every checkpoint.

    Everything after ``num_layers`` has a default derived from the first four, so that a spec can be written by hand.

    Attributes:
        name: Name or folder of the target.
        hidden_size: Width H.
        vocab_size: Rows V of the head.
        num_layers: Decoder layers.
        num_attention_heads: Query heads (default: ``hidden_size // head_dim``).
        num_key_value_heads: Key/value heads (default: all query heads).
        head_dim: Width of a head (default: 64 where it divides ``hidden_size``, else ``hidden_size``).
        intermediate_size: Width of the MLP (default: ``3 * hidden_size``).
        rms_norm_eps: Epsilon of the norms.
        rope_parameters: ``{"rope_type": "default", "rope_theta": ...}`` as transformers names them.
        max_position_embeddings: Longest context of the target, in tokens.
        taps: Ids of the tapped layers: ``i`` is the output of layer ``i``, HF ``hidden_states[i + 1]``
            (default: 5 evenly spaced, fewer for a shallow target).
        mask_token_id: The existing embedding row that fills undrafted slots (default: the last row).
        draft_vocab_size: Rows D of the draft vocabulary (default: ``vocab_size``).
        architecture: Class of the model in transformers, empty where it is unknown.
    """

    name: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    rms_norm_eps: float = 1e-6
    rope_parameters: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    max_position_embeddings: int = 32768
    taps: tuple[int, ...] = ()
    mask_token_id: int = -1
    draft_vocab_size: int = 0
    architecture: str = ""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "vocab_size", "num_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731  (frozen dataclass)
        if not self.head_dim:
            width = 64 if self.hidden_size % 64 == 0 else self.hidden_size
            put("head_dim", self.hidden_size // self.num_attention_heads if self.num_attention_heads else width)
        if not self.num_attention_heads:
            put("num_attention_heads", max(1, self.hidden_size // self.head_dim))
        if not self.num_key_value_heads:
            put("num_key_value_heads", self.num_attention_heads)
        if not self.intermediate_size:
            put("intermediate_size", 3 * self.hidden_size)
        put("taps", tuple(self.taps) or evenly_spaced_taps(self.num_layers, min(5, self.num_layers)))
        if self.mask_token_id == -1:
            put("mask_token_id", self.vocab_size - 1)
        if not self.draft_vocab_size:
            put("draft_vocab_size", self.vocab_size)
        check_taps(self.taps, self.num_layers)
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id {self.mask_token_id} is outside the vocabulary of {self.name!r}; "
                f"choose an existing embedding row in 0..{self.vocab_size - 1}"
            )

    @property
    def feature_size(self) -> int:
        """Width of the concatenated taps, ``T * H``."""
        return len(self.taps) * self.hidden_size

    def to_dict(self) -> dict[str, Any]:
        """Builtins only, so that a checkpoint loads with ``weights_only=True``."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["taps"] = list(self.taps)
        out["rope_parameters"] = dict(self.rope_parameters)
        return out

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TargetSpec:
        """Inverse of :meth:`to_dict`."""
        return cls(**{**values, "taps": tuple(values["taps"])})


@dataclass
class DraftBatch:
    """A training batch of tokenised conversations, right-padded or packed.

    Attributes:
        input_ids: ``[N, L]`` int64.
        loss_mask: ``[N, L]`` bool, true where the *token* was written by the assistant, so that it may be a label.
        document_ids: ``[N, L]`` int64, document of each token counted from 0; -1 is padding.
        position_ids: ``[N, L]`` int64, restarting at 0 in every document.
        features: ``[N, L, T * H]`` concatenated taps, or None when the module has to extract them.
        last_hidden: ``[N, L, H]`` hidden state after the target's final norm (soft labels), or None.
        families: One name per row, to report metrics by family of prompts; empty when unknown.
    """

    input_ids: Tensor
    loss_mask: Tensor
    document_ids: Tensor
    position_ids: Tensor
    features: Tensor | None = None
    last_hidden: Tensor | None = None
    families: list[str] = field(default_factory=list)


@dataclass
class BlockBatch:
    """Blocks cut from a :class:`DraftBatch`, as the inclusion built them.

    Attributes:
        anchors: ``[N, A]`` int64, index of the anchor token in its row.
        valid: ``[N, A]`` bool, false for filler where a row has fewer anchors than A.
        tokens: ``[N, A, B]`` int64 input: the anchor, then mask tokens or revealed ground truth.
        slots: ``[N, A, B]`` bool, slots that exist (a shorter horizon has fewer).
        labels: ``[N, A, B]`` int64, the token that each slot predicts; meaningless where not supervised.
        supervised: ``[N, A, B]`` bool, slots that count in the loss.
        label_positions: ``[N, A, B]`` int64, index of the label token in its row, clamped into the row.
    """

    anchors: Tensor
    valid: Tensor
    tokens: Tensor
    slots: Tensor
    labels: Tensor
    supervised: Tensor
    label_positions: Tensor


@dataclass
class TargetOutput:
    """One forward of the target.

    Attributes:
        hidden: ``[N, n, H]`` after the final norm, what the head reads; None when the forward stopped at the last tap.
        features: ``[N, n, T * H]`` concatenated taps, or None when not asked for.
    """

    hidden: Tensor | None
    features: Tensor | None


@dataclass
class Proposal:
    """Drafted tokens of one round.

    Attributes:
        tokens: ``[N, K]`` int64 ids of the *target's* vocabulary.
        q: ``[N, K, V]`` probabilities that each token was drawn from given its predecessors, or None for a
            deterministic draft, which is verified as a point mass.
        confidence: ``[N, K]`` float32 probability that each draft is accepted if those before it were; a function of
            the *earlier* drafts, never of the draft itself or later ones. None if unknown.
        limit: ``[N]`` int64, most drafts to verify per row; whether draft k is offered may depend on earlier drafts
            only. None verifies all.
    """

    tokens: Tensor
    q: Tensor | None = None
    confidence: Tensor | None = None
    limit: Tensor | None = None


@dataclass
class Verdict:
    """Outcome of verifying one round.

    Attributes:
        accepted: ``[N]`` int64, length A of the accepted prefix, 0..K.
        next_token: ``[N]`` int64, the correction (A < K) or bonus (A == K) token.
    """

    accepted: Tensor
    next_token: Tensor


@dataclass
class RoundTiming:
    """Seconds of one or more rounds by part; parts add with ``+``."""

    draft: float = 0.0
    correct: float = 0.0
    verify: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of all parts together."""
        return self.draft + self.correct + self.verify + self.host

    def __add__(self, other: RoundTiming) -> RoundTiming:
        return RoundTiming(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class Head(Protocol):
    """The frozen vocabulary projection, whole or reduced to the draft vocabulary."""

    weight: Tensor  # [D, H]
    token_ids: Tensor | None  # [D] int64 target id of each row, None when D == V

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map ``[..., H]`` to logits ``[..., D]``, scaling and soft caps included; differentiable in ``hidden``."""
        ...

    def to_rows(self, ids: Tensor) -> Tensor:
        """Map target ids to rows, -1 for a token outside the draft vocabulary; same shape, int64."""
        ...

    def to_ids(self, rows: Tensor) -> Tensor:
        """Map rows to target ids; same shape, int64."""
        ...


@runtime_checkable
class DecodingTarget(Protocol):
    """What the decoding engine and the module need of a target."""

    spec: TargetSpec

    @property
    def head(self) -> Head:
        """The frozen head over the whole vocabulary."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the target computes."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Type of its activations."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Frozen input embedding of the family (scaling included): ``[...]`` int64 to ``[..., H]``."""
        ...

    def new_cache(self, rows: int, capacity: int) -> Any:
        """Empty :class:`specdraft.cache.KeyValueCache` for ``rows`` requests of at most ``capacity`` tokens."""
        ...

    def forward(self, input_ids: Tensor, cache: Any, *, features: bool = True) -> TargetOutput:
        """Run ``[N, n]`` tokens behind the cached ones.

        Keys and values are written at ``cache.lengths + 0..n-1`` of each row, query ``j`` of a row sees positions up to
        ``cache.lengths + j``. The lengths do **not** move: the caller advances by what it keeps, so that rolling
        back is free.
        """
        ...


class DecodingDrafter(Protocol):
    """What the decoding engine needs of a drafter."""

    spec: TargetSpec
    block_size: int
    sample_from_anchor: bool

    def new_cache(self, rows: int, capacity: int) -> Any:
        """Empty context cache; its lengths equal the number of verified tokens whose features it holds."""
        ...

    def extend(self, features: Tensor, cache: Any) -> None:
        """Write context keys and values of ``[N, n, T * H]`` features behind ``cache.lengths``; lengths do not move."""
        ...

    def draft(self, embeds: Tensor, cache: Any) -> Tensor:
        """Hidden states ``[N, b, H]`` of one block from its input embeddings ``[N, b, H]``, ``b <= B``.

        Slot ``i`` sits at position ``cache.lengths + i``: the anchor's position is the number of cached context tokens.
        """
        ...


class DecodingCorrector(Protocol):
    """What the decoding engine needs of a corrector."""

    def propose(
        self,
        hidden: Tensor,
        base_logits: Tensor,
        anchor: Tensor,
        temperature: float,
        generator: torch.Generator | None,
        head: Head,
    ) -> Proposal:
        """Choose the drafts of a round from hidden states ``[N, K, H]``, logits ``[N, K, D]``, anchors ``[N]``."""
        ...
