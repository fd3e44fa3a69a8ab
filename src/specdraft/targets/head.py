"""The frozen vocabulary projection with the family's scaling, whole or cut down to a draft vocabulary."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from specdraft.packing import PackedWeight


class FrozenHead:
    """Logits of hidden states: ``softcap * tanh(multiplier * (W h + b) / softcap)``.

    A plain object, so that the target's weights are in no module tree. Hidden states are cast to the dtype of the
    weight. The target's own head computes in that dtype whatever the autocast around it, as the rest of the target
    does; a reduced head, and :meth:`for_drafting`, follow the autocast of the drafter.

    Args:
        weight: ``[D, H]`` frozen rows; ``D == V`` unless reduced.
        bias: ``[D]``, or None.
        softcap: Bound of the logits (Gemma), or None.
        multiplier: Factor of the logits (Cohere's ``logit_scale``, 1 / Granite's ``logits_scaling``).
        token_ids: ``[D]`` int64, strictly increasing target id of each row, or None for the whole vocabulary.
        vocab_size: V, needed with ``token_ids``.
        pack: Whether decoding may use a packed copy of the weight.

    Raises:
        ValueError: If shapes do not fit, or ``token_ids`` are out of range, unsorted or named twice.
    """

    def __init__(
        self,
        weight: Tensor,
        *,
        bias: Tensor | None = None,
        softcap: float | None = None,
        multiplier: float = 1.0,
        token_ids: Tensor | None = None,
        vocab_size: int | None = None,
        pack: bool = True,
    ) -> None:
        if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            raise ValueError(f"weight must be [D, H] and bias [D], got {tuple(weight.shape)}, {_shape(bias)}")
        if softcap is not None and softcap <= 0:
            raise ValueError(f"softcap must be positive, got {softcap}; use None for no cap")
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.softcap = softcap
        self.multiplier = multiplier
        self.vocab_size = weight.shape[0] if vocab_size is None else vocab_size
        self.token_ids = None
        self._rows: Tensor | None = None
        if token_ids is not None:
            if vocab_size is None:
                raise ValueError("vocab_size must be given together with token_ids")
            self.token_ids = _checked(token_ids, self.vocab_size, weight.shape[0]).to(weight.device)
            self._rows = torch.full((self.vocab_size,), -1, dtype=torch.int64, device=weight.device)
            self._rows[self.token_ids] = torch.arange(weight.shape[0], device=weight.device)
        self._pack = pack
        self._product = PackedWeight(self.weight, self.bias, pack=pack)
        self._drafting = token_ids is not None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map ``[..., H]`` to logits ``[..., D]``; differentiable in ``hidden``."""
        device = hidden.device.type
        if not self._drafting and torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self._logits(hidden)
        return self._logits(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self._product(hidden.to(self.weight.dtype))
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def for_drafting(self) -> FrozenHead:
        """The same head, sharing its weights, for the drafter's output."""
        head = copy(self)
        head._drafting = True
        return head

    def to_rows(self, ids: Tensor) -> Tensor:
        """Map target ids to rows, -1 for a token outside the draft vocabulary; same shape, int64."""
        return ids if self._rows is None else self._rows[ids]

    def to_ids(self, rows: Tensor) -> Tensor:
        """Map rows to target ids; same shape, int64."""
        return rows if self.token_ids is None else self.token_ids[rows]

    def reduce(self, token_ids: Tensor) -> FrozenHead:
        """Head over a draft vocabulary; its rows are copied once.

        Args:
            token_ids: ``[D]`` int64 target ids, strictly increasing.

        Raises:
            ValueError: If the ids are not usable, or this head is already reduced.
        """
        if self.token_ids is not None:
            raise ValueError(f"this head is already reduced to {len(self.token_ids)} tokens; reduce the whole head")
        ids = _checked(token_ids, self.vocab_size, len(token_ids)).to(self.weight.device)
        return FrozenHead(
            self.weight.index_select(0, ids),
            bias=None if self.bias is None else self.bias.index_select(0, ids),
            softcap=self.softcap,
            multiplier=self.multiplier,
            token_ids=ids,
            vocab_size=self.vocab_size,
            pack=self._pack,
        )

    def to(self, device: torch.device | str) -> FrozenHead:
        """The same head with its weights on ``device``."""
        head = FrozenHead(
            self.weight.to(device),
            bias=None if self.bias is None else self.bias.to(device),
            softcap=self.softcap,
            multiplier=self.multiplier,
            token_ids=self.token_ids,
            vocab_size=self.vocab_size,
            pack=self._pack,
        )
        head._drafting = self._drafting
        return head


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def _checked(token_ids: Tensor, vocab_size: int, rows: int) -> Tensor:
    if token_ids.dim() != 1 or token_ids.dtype != torch.int64 or len(token_ids) != rows or rows == 0:
        raise ValueError(
            f"token_ids must be a non-empty int64 tensor [D] with D = {rows} rows, got {token_ids.dtype} "
            f"{tuple(token_ids.shape)}"
        )
    low, high = int(token_ids.min()), int(token_ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(f"token_ids {low}..{high} leave the target's vocabulary 0..{vocab_size - 1}")
    steps = token_ids.diff()
    if bool((steps <= 0).any()):
        at = int((steps <= 0).nonzero()[0])
        raise ValueError(
            f"token_ids must be strictly increasing, but {int(token_ids[at])} is followed by {int(token_ids[at + 1])}; "
            "sort them and name each once"
        )
    return token_ids
