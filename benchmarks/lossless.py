"""Is greedy speculative decoding of SmolLM2 equal to autoregressive decoding, token for token, with any drafter?

    python benchmarks/lossless.py --checkpoint runs/quickstart/version_0/checkpoints/best.ckpt

Decodes held-out prompts with the trained drafter, an untrained one, and an adversarial one that proposes the token it
holds for least probable, in fp32, and counts the outputs that equal those of the lean autoregressive loop.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.commands import encode_prompt, load_module
from specdraft.correctors import Corrector, NoCorrector
from specdraft.data.prompts import build_prompts
from specdraft.decoding import Request, autoregressive_decode, speculative_decode
from specdraft.drafters import DFlash, Drafter
from specdraft.targets import FrozenHead, HFTarget
from specdraft.types import Head, Proposal


class Adversary(Corrector):
    """Propose the least probable token of every slot."""

    @override
    def propose(
        self,
        hidden: Tensor,
        base_logits: Tensor,
        anchor: Tensor,
        temperature: float,
        generator: torch.Generator | None,
        head: Head,
    ) -> Proposal:
        return Proposal(head.to_ids(base_logits.argmin(-1)))


def held_out_requests(target: HFTarget, count: int, max_new_tokens: int) -> list[Request]:
    """The first ``count`` held-out prompts of the embedded data; their order mixes the families."""
    rows = build_prompts("heldout")[:count]
    return [Request(encode_prompt(target.tokenizer, row.prompt), max_new_tokens, target.stop_token_ids) for row in rows]


def equal_outputs(
    target: HFTarget,
    drafter: Drafter,
    corrector: Corrector,
    head: FrozenHead,
    requests: list[Request],
    expected: list[list[int]],
    concurrency: int,
) -> tuple[int, float]:
    """How many greedy outputs equal the expected ones, and the MAT."""
    done = speculative_decode(
        target,
        drafter.eval(),
        corrector,
        head,
        requests,
        mask_token_id=target.spec.mask_token_id,
        concurrency=concurrency,
    )
    return sum(a.tokens == b for a, b in zip(done.results, expected, strict=True)), done.mat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs=2, action="append", metavar=("CONCURRENCY", "PROMPTS"))
    options = parser.parse_args()
    module = load_module(options.checkpoint)
    target, spec = module.target, module.target.spec
    torch.manual_seed(0)
    untrained = DFlash(spec, num_layers=2, block_size=module.drafter.block_size).to(target.device)
    cases: list[tuple[str, Drafter, Corrector]] = [
        ("trained", module.drafter, module.corrector),
        ("untrained", untrained, NoCorrector(spec)),
        ("adversarial", module.drafter, Adversary(spec)),
    ]
    for concurrency, count in options.batches or [(8, 64), (1, 16)]:
        requests = held_out_requests(target, count, options.max_new_tokens)
        plain = autoregressive_decode(target, requests, concurrency=concurrency)
        expected = [result.tokens for result in plain.results]
        for name, drafter, corrector in cases:
            head = module.draft_head if drafter is module.drafter else target.head
            equal, mat = equal_outputs(target, drafter, corrector, head, requests, expected, concurrency)
            print(
                f"concurrency {concurrency}, {name} drafter: {equal} of {count} outputs equal, MAT {mat:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
