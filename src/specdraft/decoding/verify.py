"""Lossless verification of a batch of drafts: pure functions of probabilities and uniform variates."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from specdraft.decoding.sampling import sample
from specdraft.types import Verdict

Rule: TypeAlias = Literal["token", "block"]


def verify(
    p: Tensor,
    tokens: Tensor,
    q: Tensor | None = None,
    *,
    rule: Rule = "token",
    generator: torch.Generator | None = None,
    limit: Tensor | None = None,
) -> Verdict:
    """Accept a prefix of the drafts and draw the token behind it, so that the emitted tokens follow the target's law.

    Args:
        p: ``[N, K + 1, V]`` target probabilities given the drafts before each position.
        tokens: ``[N, K]`` int64 drafts.
        q: ``[N, K, V]`` law that each draft was drawn from given its predecessors, or None for a draft that is a
            deterministic function of the context.
        rule: ``token`` accepts draft by draft (arXiv 2211.17192); ``block`` accepts jointly, never fewer in
            expectation (arXiv 2403.10444). For ``q=None`` the two coincide.
        generator: Source of randomness, on the device of ``p``.
        limit: ``[N]`` int64, most drafts to accept per row. Whether it reaches draft k may depend on the drafts before
            k, not on draft k: a limit is settled before that draft is drawn. The token behind it is drawn from ``p``
            itself, so that a shorter round stays lossless.

    Returns:
        The accepted length and the next token.

    Raises:
        ValueError: If the shapes do not belong together.
    """
    # float32 whatever the default: under precision bf16-true 256 values would be left, and rare drafts pass too often
    uniforms = torch.rand(tokens.shape, generator=generator, device=p.device, dtype=torch.float32)
    accepted, law = decide(p, tokens, q, uniforms, rule=rule, limit=limit)
    return Verdict(accepted, sample(law, generator))


def verify_greedy(predicted: Tensor, tokens: Tensor, limit: Tensor | None = None) -> Verdict:
    """The limit of :func:`verify` at temperature 0, without a softmax: accept while draft and argmax agree.

    Args:
        predicted: ``[N, K + 1]`` int64 argmax of the target, or its logits ``[N, K + 1, V]``.
        tokens: ``[N, K]`` int64 drafts.
        limit: ``[N]`` int64, most drafts to accept per row.
    """
    if predicted.ndim == 3:
        predicted = predicted.argmax(-1)
    if predicted.shape != (tokens.shape[0], tokens.shape[1] + 1):
        raise ValueError(f"predicted {list(predicted.shape)} must be one longer than tokens {list(tokens.shape)}")
    accepted = _leading(predicted[:, :-1] == tokens)
    if limit is not None:
        accepted = torch.minimum(accepted, limit)
    return Verdict(accepted, predicted.gather(1, accepted[:, None])[:, 0])


def decide(
    p: Tensor,
    tokens: Tensor,
    q: Tensor | None,
    uniforms: Tensor,
    *,
    rule: Rule = "token",
    limit: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The whole of :func:`verify` but the randomness.

    Args:
        p: As in :func:`verify`.
        tokens: As in :func:`verify`.
        q: As in :func:`verify`.
        uniforms: ``[N, K]`` variates in [0, 1); position k passes where its variate is below its threshold.
        rule: As in :func:`verify`.
        limit: As in :func:`verify`.

    Returns:
        Accepted length ``[N]`` and the law ``[N, V]`` of the next token, not normalised.
    """
    _check(p, tokens, q, rule)
    drafts = tokens.shape[1]
    limit = tokens.new_full(tokens.shape[:1], drafts) if limit is None else limit.clamp(0, drafts)
    levels, carried = thresholds(p, tokens, q, rule=rule, limit=limit)
    passed = uniforms < levels
    if q is not None and rule == "block":
        # the *largest* position that passes: later positions may save earlier ones
        places = torch.arange(1, drafts + 1, device=tokens.device)
        accepted = (passed * places).amax(-1) if drafts else limit
    else:
        accepted = _leading(passed)
    behind = p.gather(1, accepted[:, None, None].expand(-1, 1, p.shape[-1]))[:, 0]
    if drafts == 0:
        return accepted, behind
    index = accepted.clamp_max(drafts - 1)[:, None]
    if q is None:
        rest = behind.scatter(1, tokens.gather(1, index), 0.0)
    else:
        weight = carried.gather(1, accepted[:, None])
        rest = (weight * behind - q.gather(1, index[..., None].expand(-1, 1, q.shape[-1]))[:, 0]).clamp_min(0)
    # no mass left means that rejecting had probability zero but for rounding; p is then as good as the residual
    use_p = (accepted >= limit) | (rest.sum(-1) <= 0)
    return accepted, torch.where(use_p[:, None], behind, rest)


def thresholds(p: Tensor, tokens: Tensor, q: Tensor | None, *, rule: Rule, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Probability ``[N, K]`` that each position passes, and the weight ``[N, K + 1]`` of p in each residual.

    Token rule: ``min(1, p / q)`` and 1. Block rule (arXiv 2403.10444): ``P_0 = 1``,
    ``P_i = min(P_{i-1} p(x_i) / q(x_i), 1)``, ``S_i = sum_v (P_i p(v | x_<=i) - q(v | x_<=i))_+``,
    ``h_i = S_i / (S_i + 1 - P_i)`` before the limit, ``h = P`` at it; the weights are the ``P_i``.
    """
    drawn = p[:, :-1].gather(2, tokens[..., None])[..., 0]
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    offered = places <= limit[:, None]
    ones = drawn.new_ones(drawn.shape[0], drawn.shape[1] + 1)
    if q is None:
        return drawn * offered, ones
    proposed = q.gather(2, tokens[..., None])[..., 0]
    ratio = drawn / proposed.clamp_min(torch.finfo(proposed.dtype).tiny)
    if rule == "token":
        return ratio.clamp_max(1) * offered, ones
    joint = [ones[:, 0]]
    for k in range(tokens.shape[1]):  # K tiny kernels: min makes it no plain cumulative product
        joint.append((joint[-1] * ratio[:, k]).clamp_max(1))
    weights = torch.stack(joint, 1)
    inner = weights[:, 1:-1]
    mass = (inner[..., None] * p[:, 1:-1] - q[:, 1:]).clamp_min(0).sum(-1)
    slack = mass + 1 - inner
    # P = 1 and p = q: nothing can be lost behind this position, it passes
    level = torch.where(slack > 0, (mass / slack.clamp_min(torch.finfo(slack.dtype).tiny)).clamp_max(1), 1.0)
    level = torch.cat([level, weights[:, -1:]], 1)
    level = torch.where(places == limit[:, None], weights[:, 1:], level)
    return level * offered, weights


def _leading(passed: Tensor) -> Tensor:
    """Length ``[N]`` of the leading run of true values in ``[N, K]``."""
    return passed.long().cumprod(-1).sum(-1)


def _check(p: Tensor, tokens: Tensor, q: Tensor | None, rule: str) -> None:
    rows, drafts = tokens.shape
    if p.ndim != 3 or p.shape[:2] != (rows, drafts + 1):
        raise ValueError(f"p {list(p.shape)} must be [N, K + 1, V] for tokens {list(tokens.shape)}")
    if q is not None and q.shape != (rows, drafts, p.shape[2]):
        raise ValueError(f"q {list(q.shape)} must be {[rows, drafts, p.shape[2]]} for p {list(p.shape)}")
    if rule not in ("token", "block"):
        raise ValueError(f"rule {rule!r} is unknown; use 'token' or 'block'")
