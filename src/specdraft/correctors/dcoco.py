"""Contextual correction of all adjacent candidate pairs (DCOCO)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from specdraft.correctors.base import check_positive
from specdraft.correctors.candidate_loss import CandidateLoss
from specdraft.correctors.lattice import Lattice, LatticeCorrector
from specdraft.types import TargetSpec


class DCOCO(LatticeCorrector):
    """DFlash Contextual Corrector (*Contextual Correction of Parallel Drafts for Speculative Decoding*).

    Known from the model cards: 16 candidates per slot, candidate and pair states of width 128, a scoring MLP of hidden
    width 256, all adjacent transitions in one batched pass, a prefix-first greedy walk, 2,229,505 parameters at
    H = 4096 and 1,443,073 at H = 2560. The equation is not public; this is specdraft's reading, and it has exactly
    these sizes (``512 H + 132,353``):

    - candidate state ``c_t(a) = W_e n(E(a)) + W_h n(h_t)``, with the target's frozen embedding E;
    - pair state ``r_t = W_p [n(h_{t-1}) ; n(h_t)]``;
    - ``S_t(a, b) = U_t(b) + MLP([c_{t-1}(a), c_t(b), c_{t-1}(a) * c_t(b), r_t, logp_{t-1}(a), logp_t(b), gap_t(b)])``

    where n scales a vector to root mean square 1, without weights: embeddings are several times smaller than hidden
    states (0.14 to 0.9 in SmolLM2), and unscaled the corrector hardly saw which token a candidate is. ``gap_t(b)`` is
    the distance of b's logit to the largest. The MLP is ``515 -> 256 -> 1`` with SiLU; its last
    layer starts at zero, so that training starts from the uncorrected drafter. The projections have no bias. The
    first layer is linear in its parts, so that all but the product are projected once per candidate or slot, not once
    per pair. On a CPU, where multiplications cost more than launches, the greedy walk scores only the pairs behind the
    chosen candidates.

    The first slot has no pair of slots before it and keeps its own scores. With ``score_first`` the anchor is its one
    predecessor, with ``c = W_e E(anchor) + W_h h_0``, pair state ``W_p [h_0 ; h_0]`` and log-probability 0.

    Args:
        spec: The target.
        candidates: Candidates C per slot.
        width: Width of a candidate state.
        pair_width: Width of a pair state.
        hidden: Hidden width of the MLP.
        score_first: Score the first slot given the anchor.
        rms_inputs: Scale by n; false is the identity.
        sample: At ``temperature > 0`` sample the walk; false proposes the greedy walk as a point mass.
        weight: Weight of the corrector's loss beside the drafter's own in joint training.
        loss: Loss of one slot's candidates, such as :class:`CandidateMargin`; null is cross-entropy.
    """

    reads_log_z = True

    def __init__(
        self,
        spec: TargetSpec,
        candidates: int = 16,
        width: int = 128,
        pair_width: int = 128,
        hidden: int = 256,
        score_first: bool = False,
        rms_inputs: bool = True,
        sample: bool = False,
        weight: float = 1.0,
        loss: CandidateLoss | None = None,
    ) -> None:
        check_positive(width=width, pair_width=pair_width, hidden=hidden)
        super().__init__(spec, candidates, sample, weight, loss)
        self.sizes = (width, width, width, pair_width, 1, 1, 1)
        self.score_first, self.rms_inputs = score_first, rms_inputs
        self.token_proj = nn.Linear(spec.hidden_size, width, bias=False)
        self.hidden_proj = nn.Linear(spec.hidden_size, width, bias=False)
        self.pair_proj = nn.Linear(2 * spec.hidden_size, pair_width, bias=False)
        self.mlp_in = nn.Linear(sum(self.sizes), hidden)
        self.mlp_out = nn.Linear(hidden, 1)
        nn.init.zeros_(self.mlp_out.weight)
        nn.init.zeros_(self.mlp_out.bias)

    @override
    def transitions(self, hidden: Tensor, lattice: Lattice, anchor: Tensor) -> tuple[Tensor, Tensor]:
        first, states, of_a, of_b = self._prepare(hidden, lattice, anchor)
        correction = self._scored(states[:, :-1, :, None] * states[:, 1:, None], of_a[..., None, :], of_b[:, :, None])
        return first, lattice.logits[:, 1:, None] + correction

    @override
    def greedy_walk(self, hidden: Tensor, lattice: Lattice, anchor: Tensor) -> Tensor | None:
        if hidden.device.type != "cpu":
            return None
        first, states, of_a, of_b = self._prepare(hidden, lattice, anchor)
        # few rows: the number of calls decides, so each does as much as it can
        known = torch.cat([states[:, :-1], of_a], -1)
        weight = self.mlp_in.weight.split(self.sizes, 1)[2].T.expand(len(first), -1, -1)
        last = self.mlp_out.weight[0]  # its bias shifts all candidates alike
        rows = torch.arange(len(first))
        path = [first.argmax(-1)]
        for t in range(states.shape[1] - 1):
            state, before = known[rows, t, path[-1]][:, None].split((states.shape[-1], of_a.shape[-1]), -1)
            inner = torch.baddbmm(of_b[:, t] + before, states[:, t + 1] * state, weight)
            path.append((lattice.logits[:, t + 1] + F.silu(inner) @ last).argmax(-1))
        return torch.stack(path, 1)

    def _scaled(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:]) if self.rms_inputs else x

    def _prepare(self, hidden: Tensor, lattice: Lattice, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores of the first slot, states ``[N, K, C, w]``, and both parts of the first layer ``[N, K - 1, C, h]``."""
        hidden = self._scaled(hidden.to(self.mlp_in.weight.dtype))
        from_hidden = self.hidden_proj(hidden)
        states = self.token_proj(self._scaled(self.embed(lattice.ids))) + from_hidden[:, :, None]
        logp = lattice.logits - lattice.log_z[..., None]
        first = lattice.logits[:, 0]
        if self.score_first:
            state = self.token_proj(self._scaled(self.embed(anchor))) + from_hidden[:, 0]
            pair = self.pair_proj(torch.cat([hidden[:, 0], hidden[:, 0]], -1))
            before, own = self._parts(
                state[:, None], states[:, 0], pair, torch.zeros_like(logp[:, 0, :1]), lattice.at(0)
            )
            first = first + self._scored(state[:, None] * states[:, 0], before, own)
        pairs = self.pair_proj(torch.cat([hidden[:, :-1], hidden[:, 1:]], -1))
        of_a, of_b = self._parts(states[:, :-1], states[:, 1:], pairs, logp[:, :-1], lattice.at(slice(1, None)))
        return first, states, of_a, of_b

    @override
    def given(self, hidden: Tensor, lattice: Lattice, previous: Tensor, previous_logp: Tensor) -> Tensor:
        hidden = self._scaled(hidden.to(self.mlp_in.weight.dtype))
        # every token is embedded and projected once, however many slots have it among their candidates
        ids, where = torch.cat([lattice.ids, previous[..., None]], -1).unique(return_inverse=True)
        tokens = F.embedding(where, self.token_proj(self._scaled(self.embed(ids))))
        from_hidden = self.hidden_proj(hidden)
        shifted = torch.cat([hidden[:, :1], hidden[:, :-1]], 1)
        states = tokens[..., :-1, :] + from_hidden[:, :, None]
        earlier = tokens[..., -1, :] + torch.cat([from_hidden[:, :1], from_hidden[:, :-1]], 1)
        pairs = self.pair_proj(torch.cat([shifted, hidden], -1))
        earlier = earlier[..., None, :]
        before, own = self._parts(earlier, states, pairs, previous_logp[..., None], lattice)
        correction = self._scored(earlier * states, before, own)
        if not self.score_first:
            correction = torch.cat([torch.zeros_like(correction[:, :1]), correction[:, 1:]], 1)
        return lattice.logits + correction

    def _parts(self, a: Tensor, b: Tensor, pair: Tensor, logp_a: Tensor, lattice: Lattice) -> tuple[Tensor, Tensor]:
        """What the first layer makes of each candidate alone; slot and bias go with the predecessor.

        Args:
            a: ``[..., P, w]`` states of the predecessors.
            b: ``[..., C, w]`` states of the candidates.
            pair: ``[..., w']``.
            logp_a: ``[..., P]``.
            lattice: The candidates b.

        Returns:
            ``[..., P, h]`` and ``[..., C, h]``.
        """
        logp_b = (lattice.logits - lattice.log_z[..., None]).to(a.dtype)
        gap_b = (lattice.top[..., None] - lattice.logits).to(a.dtype)
        w_a, w_b, _, w_pair, w_la, w_lb, w_gb = self.mlp_in.weight.split(self.sizes, 1)
        of_a = torch.addcmul(F.linear(a, w_a), logp_a.to(a.dtype)[..., None], w_la[:, 0])
        of_b = torch.addcmul(F.linear(b, w_b), logp_b[..., None], w_lb[:, 0])
        of_b = torch.addcmul(of_b, gap_b[..., None], w_gb[:, 0])
        return of_a + F.linear(pair, w_pair, self.mlp_in.bias)[..., None, :], of_b

    def _scored(self, product: Tensor, of_a: Tensor, of_b: Tensor) -> Tensor:
        """MLP ``[...]`` of the products ``[..., w]`` of two states, and the parts of its first layer."""
        weight = self.mlp_in.weight.split(self.sizes, 1)[2]
        return self.mlp_out(F.silu(F.linear(product, weight) + of_a + of_b))[..., 0]

    @override
    def extra_state_for_checkpoint(self) -> dict[str, Any]:
        return {"score_first": self.score_first, "rms_inputs": self.rms_inputs}
