"""Sequential correction by the token before (DSpark)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from specdraft.correctors.base import check_positive
from specdraft.correctors.confidence import ConfidenceHead
from specdraft.correctors.full_vocabulary import FullVocabularyCorrector, Step
from specdraft.types import TargetSpec


class MarkovCorrector(FullVocabularyCorrector):
    """DSpark's Markov head (arXiv 2607.05147): a low-rank bias given the token before.

    With ``e_k = W1[x_{k-1}]`` ``[r]``, the embedding of the predecessor (the anchor at the first slot), and the
    drafter's ``h_k`` ``[H]`` and ``U_k`` ``[D]``, the law of slot k is ``softmax(U_k + W2 z_k)``:

    - ``vanilla``: ``z_k = e_k``;
    - ``gated``: ``z_k = sigmoid(G [h_k ; e_k]) * e_k``;
    - ``rnn``: ``[u ; c ; o] = J [s_{k-1} ; e_k ; h_k]``, ``s_k = sigmoid(u) * s_{k-1} + (1 - sigmoid(u)) * tanh(c)``,
      ``z_k = tanh(o)``, ``s_0 = 0``.

    ``W1`` ``[V, r]``, ``W2`` ``[D, r]`` starting at zero, ``G`` ``[r, H + r]`` and ``J`` ``[3 r, 2 r + H]`` with bias.
    Without a reduced draft vocabulary the vanilla head has ``2 V r`` parameters: 77.8M for Qwen3, as published.
    Training is one parallel pass, but for the states of ``rnn``. Only the corrected logits enter the loss, as in
    DSpark: ``base_weight`` adds the drafter's own. Decoding walks the slots, each over the whole draft vocabulary.

    With ``confidence`` a :class:`ConfidenceHead` of ``H + r + 1`` parameters learns how probable it is that each draft
    is accepted, with weight 1 and the weights of the slots: ``1 - ||p - q||_1 / 2`` as published where the target's
    distribution is extracted (sampled decoding at temperature 1), else whether the most probable token is the label
    (greedy decoding). ``confidence_threshold`` of the decoding loop cuts what is verified.

    Args:
        spec: The target.
        kind: How the predecessor enters: vanilla, gated or rnn.
        rank: Width r.
        confidence: Learn how probable it is that each draft is accepted.
        sample: At ``temperature > 0`` draw every draft from its corrected law; false proposes a point mass.
        base_weight: Weight of the drafter's own loss in joint training.
    """

    def __init__(
        self,
        spec: TargetSpec,
        kind: Literal["vanilla", "gated", "rnn"] = "vanilla",
        rank: int = 256,
        confidence: bool = False,
        sample: bool = True,
        base_weight: float = 0.0,
    ) -> None:
        check_positive(rank=rank)
        if kind not in ("vanilla", "gated", "rnn"):
            raise ValueError(f"kind {kind!r} is unknown; use vanilla, gated or rnn")
        super().__init__(spec, rank, sample)
        self.kind, self.rank, self.base_weight = kind, rank, base_weight
        self.predecessor = nn.Embedding(spec.vocab_size, rank)
        nn.init.normal_(self.predecessor.weight, std=rank**-0.5)
        if kind == "gated":
            self.gate_proj = nn.Linear(spec.hidden_size + rank, rank)
        elif kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + spec.hidden_size, 3 * rank)
        self.confidence = ConfidenceHead(spec.hidden_size, rank) if confidence else None

    @property
    @override
    def confidence_head(self) -> ConfidenceHead | None:
        return self.confidence

    @override
    def confidence_logits(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        return None if self.confidence is None else self.confidence(hidden, self.predecessor(previous))

    @override
    def loss_weights(self, progress: float) -> tuple[float, float]:
        return self.base_weight, 1.0

    @override
    def codes(self, hidden: Tensor, previous: Tensor) -> Tensor:
        embedded = self.predecessor(previous)
        if self.kind == "vanilla":
            return embedded
        if self.kind == "gated":
            return torch.sigmoid(self.gate_proj(torch.cat([hidden, embedded], -1))) * embedded
        state = embedded.new_zeros(len(hidden), self.rank)
        # what does not depend on the state is projected for all slots at once
        inputs = F.linear(
            torch.cat([embedded, hidden], -1), self.joint_proj.weight[:, self.rank :], self.joint_proj.bias
        )
        out = []
        for k in range(hidden.shape[1]):
            code, state = self._advance(inputs[:, k], state)
            out.append(code)
        return torch.stack(out, 1)

    @override
    def walk(self, hidden: Tensor) -> Step:
        if self.kind == "vanilla":
            return lambda k, last: self.predecessor(last)
        rank, size = self.rank, self.spec.hidden_size
        if self.kind == "gated":
            weight = self.gate_proj.weight
            from_hidden = F.linear(hidden, weight[:, :size], self.gate_proj.bias)

            def gated(k: int, last: Tensor) -> Tensor:
                embedded = self.predecessor(last)
                return torch.sigmoid(from_hidden[:, k] + F.linear(embedded, weight[:, size:])) * embedded

            return gated
        weight = self.joint_proj.weight
        from_hidden = F.linear(hidden, weight[:, 2 * rank :], self.joint_proj.bias)
        state = hidden.new_zeros(len(hidden), rank)

        def recurrent(k: int, last: Tensor) -> Tensor:
            nonlocal state
            inputs = from_hidden[:, k] + F.linear(self.predecessor(last), weight[:, rank : 2 * rank])
            code, state = self._advance(inputs, state)
            return code

        return recurrent

    def _advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Code and next state of the rnn from the projected inputs ``[N, 3 r]``."""
        update, fresh, out = (inputs + F.linear(state, self.joint_proj.weight[:, : self.rank])).chunk(3, -1)
        gate = torch.sigmoid(update)
        return torch.tanh(out), gate * state + (1 - gate) * torch.tanh(fresh)

    @override
    def extra_state_for_checkpoint(self) -> dict[str, Any]:
        facts = {"kind": self.kind, "rank": self.rank}
        # absent without it, as in checkpoints from before there was such a head
        return facts if self.confidence is None else {**facts, "confidence": True}
