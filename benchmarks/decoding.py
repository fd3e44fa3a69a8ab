"""Ratios of the decoding engine, each from alternating runs: baseline, verification, round, correctors, vocabulary.

    python benchmarks/decoding.py                                   # an untrained drafter: times do not depend on it
    python benchmarks/decoding.py --checkpoint runs/.../best.ckpt   # also the effect of its draft vocabulary

Prints Markdown. Greedy, fixed prompts and seeds; on the CPU in fp32.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from measure import interleaved, machine, table

import specdraft.correctors
from specdraft.bench.hf_generate import HFGenerate
from specdraft.commands import encode_prompt, load_module
from specdraft.correctors import NoCorrector
from specdraft.data import ChatDataModule
from specdraft.data.prompts import build_prompts
from specdraft.decoding import (
    DecodeResult,
    Request,
    alternately,
    autoregressive_decode,
    speculative_decode,
    verify_greedy,
)
from specdraft.drafters import DFlash, Drafter
from specdraft.packing import joined, packed_linears
from specdraft.steps import most_frequent
from specdraft.targets import HFTarget, load_target


def requests_of(target: HFTarget, count: int, tokens: int, stop: bool = False) -> list[Request]:
    """Held-out prompts; without stops every request runs to its limit, so that batches stay full."""
    stops = target.stop_token_ids if stop else ()
    return [
        Request(encode_prompt(target.tokenizer, row.prompt), tokens, stops) for row in build_prompts("heldout")[:count]
    ]


def autoregressive_against_generate(target: HFTarget, options: argparse.Namespace) -> list[str]:
    """Engine AR against ``transformers.generate`` on the same prompts (D1), and concurrency 8 against 1 (D3)."""
    plain = HFGenerate(target.spec.name, target.dtype, target.device)
    rows: list[list[object]] = []
    rates: dict[int, float] = {}
    products = bare_products(target, options.batches)
    for batch in options.batches:
        requests = requests_of(target, batch, options.tokens)
        best: dict[str, tuple[float, DecodeResult]] = {}
        calls: dict[str, Callable[[], DecodeResult]] = {
            "engine": lambda requests=requests, batch=batch: autoregressive_decode(  # type: ignore[misc]
                target, requests, concurrency=batch
            ),
            "generate": lambda requests=requests, batch=batch: plain.decode(  # type: ignore[misc]
                requests, concurrency=batch
            ),
        }
        autoregressive_decode(target, requests_of(target, batch, 4), concurrency=batch)
        for _ in range(options.repeats):
            for name, call in calls.items():
                began = time.perf_counter()
                out = call()
                took = time.perf_counter() - began
                if name not in best or took < best[name][0]:
                    best[name] = (took, out)
        (mine, ours), (theirs, reference) = best["engine"], best["generate"]
        same = sum(a.tokens == b.tokens for a, b in zip(ours.results, reference.results, strict=True))
        rates[batch] = ours.tokens_per_second
        whole = (ours.emitted / mine, reference.emitted / theirs, theirs / mine)
        decode = ours.tokens_per_second / reference.tokens_per_second
        step, other = (each.decode_seconds / each.steps for each in (ours, reference))
        # beyond this ratio the products alone would take longer than the whole step may
        limits = (products[batch] / step, other / products[batch])
        rows.append([batch, *whole, decode, *limits, f"{same} of {batch}"])
    heads = ["batch", "engine tokens/s", "generate tokens/s", "ratio", "ratio without prefill"]
    heads += ["products / step", "highest ratio", "equal outputs"]
    out = [
        f"### AR against transformers.generate, {options.tokens} new tokens",
        "",
        "`products / step` is the time of the target's matrix products alone, with nothing between them, as a share of "
        "the engine's step; `highest ratio` is the step of `generate` over those products: what an engine without any "
        "other cost would reach.",
        "",
        *table(heads, rows),
    ]
    if {1, 8} <= rates.keys():
        out += ["", f"AR at concurrency 8 gives {rates[8] / rates[1]:.2f} times the tokens/s of concurrency 1."]
    return out


@torch.inference_mode()
def bare_products(target: HFTarget, counts: Sequence[int]) -> dict[int, float]:
    """Seconds of the linear layers and the head by number of rows, with the kernels of this build of torch."""
    products: list[tuple[int, Callable[[torch.Tensor], torch.Tensor]]] = [(target.head.weight.shape[1], target.head)]
    for module in target.model.modules():
        for names in (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)):
            linears = [getattr(module, name) for name in names if hasattr(module, name)]
            product = joined(*linears) if linears else None
            if product is not None:
                products.append((linears[0].in_features, product))
    inputs = {
        (rows, width): torch.ones(rows, width, device=target.device, dtype=target.dtype)
        for rows in counts
        for width in {width for width, _ in products}
    }

    def run(rows: int) -> None:
        for width, product in products:
            product(inputs[rows, width])

    calls = {str(rows): lambda rows=rows: run(rows) for rows in counts}  # type: ignore[misc]
    return {int(rows): seconds for rows, seconds in interleaved(calls, device=target.device).items()}


@torch.inference_mode()
def verification(target: HFTarget, context: int) -> list[str]:
    """Cost of a forward with head over 1 to 16 rows (D1b)."""
    ids = torch.randint(target.spec.vocab_size, (1, context + 16), generator=torch.Generator().manual_seed(0))
    ids = ids.to(target.device)
    cache = target.new_cache(1, context + 16)
    target.forward(ids[:, :context], cache, features=False)
    cache.advance(context, extent=context)

    def step(count: int) -> None:
        out = target.forward(ids[:, context : context + count], cache, features=count > 1)
        assert out.hidden is not None
        target.head(out.hidden).argmax(-1)

    counts = (1, 2, 4, 8, 16)
    seconds = interleaved({str(n): lambda n=n: step(n) for n in counts}, device=target.device)  # type: ignore[misc]
    rows = [[n, 1e3 * seconds[str(n)], seconds[str(n)] / seconds["1"]] for n in counts]
    return [f"### Verifying n rows at context {context}, batch 1", "", *table(["rows", "ms", "against 1 row"], rows)]


@torch.inference_mode()
def speculative_round(
    target: HFTarget, drafter: Drafter, corrector: Any, head: Any, batch: int, options: argparse.Namespace
) -> list[object]:
    """Latency of a round in the loop against its model calls timed bare at the same shapes (D2), medians of turns."""
    context = options.context
    rounds = 24
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(target.spec.vocab_size, (batch, context), generator=generator)
    # an untrained drafter is hardly ever right, so that a round emits about one token and contexts hardly grow
    requests = [Request(prompt, rounds) for prompt in prompts]
    mask_id = target.spec.mask_token_id
    block, first = drafter.block_size, drafter.first_slot
    cache, past = target.new_cache(batch, context + 64), drafter.new_cache(batch, context + 64)
    out = target.forward(prompts.to(target.device), cache)
    drafter.extend(out.features, past)  # type: ignore[arg-type]
    for held in (cache, past):
        held.advance(torch.full((batch,), context, device=target.device), extent=context)
    ids = torch.full((batch, block), mask_id, device=target.device)
    anchor = ids[:, 0]
    hidden = drafter.draft(target.embed(ids), past)[:, first:]
    logits = head(hidden.to(head.weight.dtype))
    tokens = corrector.propose(hidden, logits, anchor, 0.0, None, head).tokens
    checked = torch.cat([anchor[:, None], tokens], 1)
    verified = target.forward(checked, cache)

    def draft() -> None:
        head(drafter.draft(target.embed(ids), past)[:, first:].to(head.weight.dtype))

    def verify() -> None:
        found = target.forward(checked, cache)
        assert found.hidden is not None
        verify_greedy(target.head(found.hidden), tokens)

    calls = {
        "draft": draft,
        "extend": lambda: drafter.extend(verified.features, past),  # type: ignore[arg-type]
        "correct": lambda: corrector.propose(hidden, logits, anchor, 0.0, None, head),
        "verify": verify,
    }

    def loop() -> float:
        done = speculative_decode(target, drafter, corrector, head, requests, mask_token_id=mask_id, concurrency=batch)
        return statistics.median(entry.seconds for entry in done.log)

    loop()
    turns: list[list[float]] = []
    for _ in range(options.turns):
        latency = loop()
        bare = interleaved(calls, repeats=8, device=target.device)
        total = sum(bare.values())
        turns.append([*bare.values(), total, latency, latency / total])
    # column by column: a disturbed turn must not decide the ratio
    *seconds, ratio = (statistics.median(column) for column in zip(*turns, strict=True))
    return [batch, *(1e3 * value for value in seconds), ratio]


@torch.inference_mode()
def correctors(target: HFTarget, drafter: Drafter, head: Any) -> list[str]:
    """Cost of one call of every corrector that is built from the spec alone, against a draft of the same shapes."""
    spec = target.spec if head.token_ids is None else replace(target.spec, draft_vocab_size=len(head.token_ids))
    block = drafter.block_size
    rows: list[list[object]] = []
    for batch in (1, 8):
        past = drafter.new_cache(batch, 300)
        past.advance(torch.full((batch,), 256, device=target.device), extent=256)
        ids = torch.full((batch, block), spec.mask_token_id, device=target.device)
        hidden = drafter.draft(target.embed(ids), past)[:, drafter.first_slot :]
        logits = head(hidden.to(head.weight.dtype))
        calls: dict[str, Callable[[], Any]] = {"draft": lambda: head(drafter.draft(target.embed(ids), past))}  # noqa: B023
        for name in specdraft.correctors.__all__:
            kind = getattr(specdraft.correctors, name)
            if inspect.isabstract(kind):
                continue
            try:
                corrector = kind(spec).to(target.device).eval()
                corrector.bind(target.embed)
                corrector.propose(hidden, logits, ids[:, 0], 0.0, None, head)
            except Exception as error:  # one that needs more than the spec is no reason to stop
                print(f"<!-- {name} left out: {error} -->")
                continue
            calls[name] = lambda c=corrector, h=hidden, x=logits, a=ids[:, 0]: c.propose(  # type: ignore[misc]
                h, x, a, 0.0, None, head
            )
        seconds = interleaved(calls, device=target.device)
        rows += [[batch, name, 1e3 * value, value / seconds["draft"]] for name, value in seconds.items()]
    return ["### Correctors", "", *table(["batch", "call", "ms", "against the draft"], rows)]


def uncorrected(
    target: HFTarget, drafter: Drafter, head: Any, block_size: int | None = None
) -> Callable[[list[Request]], DecodeResult]:
    """Speculative decoding, one request at a time, with a drafter alone and the given head."""
    return lambda share: speculative_decode(
        *(target, drafter, NoCorrector(target.spec), head, share),
        mask_token_id=target.spec.mask_token_id,
        block_size=block_size,
    )


def draft_vocabulary(module: Any, options: argparse.Namespace) -> list[str]:
    """A checkpoint's drafter with the whole head and with those of frequent tokens, uncorrected, in turns (D5)."""
    target = module.target
    requests = requests_of(target, options.prompts, 64, stop=True)
    plain = [r.tokens for r in autoregressive_decode(target, requests, concurrency=1).results]
    data = ChatDataModule("smollm2-chat")
    data.connect(target)
    # a size that the checkpoint has is measured with its own ids, which other data may have chosen
    counted = [size for size in options.draft_vocabularies if size != module.draft_vocab_size]
    heads = [target.head, *(target.head.reduce(most_frequent(data, size)) for size in counted), module.draft_head]
    decodes = [uncorrected(target, module.drafter, head) for head in heads]
    for decode in decodes:
        decode(requests[:1])
    found = alternately(decodes, requests, 1)
    whole = found[0]
    rows: list[list[object]] = []
    for head, done in zip(heads, found, strict=True):
        same = sum(a.tokens == b for a, b in zip(done.results, plain, strict=True))
        draft = 1e3 * done.timing.draft / done.steps
        faster = whole.timing.draft / whole.steps / done.timing.draft * done.steps
        rows.append(
            [
                *(head.weight.shape[0], done.mat, done.mat / whole.mat, draft, faster),
                *(done.tokens_per_second / whole.tokens_per_second, f"{same} of {len(plain)}"),
            ]
        )
    columns = ["draft vocabulary", "MAT", "MAT / whole", "draft ms per round", "faster", "tokens/s / whole"]
    return ["### Draft vocabulary, batch 1", "", *table([*columns, "equal to AR"], rows)]


def draft_vocabulary_by_layers(target: HFTarget, options: argparse.Namespace) -> list[str]:
    """What a reduced head saves of a round's draft, by decoder layers of the drafter, whose weights it has to read."""
    size = options.draft_vocabularies[0]
    heads = [target.head, target.head.reduce(torch.arange(min(size, target.spec.vocab_size), device=target.device))]
    requests = requests_of(target, options.prompts // 2, 24)  # an untrained drafter emits a token per round
    rows: list[list[object]] = []
    for layers in (1, 2, 5):
        torch.manual_seed(0)
        drafter = DFlash(target.spec, num_layers=layers, block_size=8, tap_norm=True).to(target.device).eval()
        for block_size in (4, 8):
            with packed_linears(drafter):
                decodes = [uncorrected(target, drafter, head, block_size) for head in heads]
                for decode in decodes:
                    decode(requests[:1])
                whole, reduced = (1e3 * d.timing.draft / d.steps for d in alternately(decodes, requests, 1))
            rows.append([layers, block_size, whole, reduced, whole / reduced])
    columns = ["layers", "block size", "draft ms, whole", f"draft ms, {size}", "faster"]
    return ["### Draft vocabulary by layers of the drafter, untrained, batch 1", "", *table(columns, rows)]


def report(options: argparse.Namespace) -> list[str]:
    """All sections."""
    if options.checkpoint:
        module = load_module(options.checkpoint)
        target, drafter = module.target, module.drafter
        corrector: Any = module.corrector
        head: Any = module.draft_head
    else:
        module = None
        target = load_target(options.target, device="cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)
        drafter = DFlash(target.spec, num_layers=2, block_size=8, tap_norm=True).to(target.device).eval()
        corrector = NoCorrector(target.spec)
        head = target.head.reduce(torch.arange(min(8192, target.spec.vocab_size), device=target.device))
    out = [*autoregressive_against_generate(target, options), "", *verification(target, options.context), ""]
    with packed_linears(drafter):
        rows = [speculative_round(target, drafter, corrector, head, batch, options) for batch in (1, 8)]
        heads = ["batch", "draft", "extend", "correct", "verify", "sum", "round", "round / sum"]
        out += ["### A speculative round against its model calls, ms", "", *table(heads, rows), ""]
        out += [*correctors(target, drafter, head), "", *draft_vocabulary_by_layers(target, options)]
        if module is not None and module.draft_vocab_size:
            out += ["", *draft_vocabulary(module, options)]
    return out


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", help="a trained drafter; default: an untrained one for --target")
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--turns", type=int, default=7, help="turns of the loop and of its bare model calls")
    parser.add_argument("--prompts", type=int, default=16, help="prompts for the draft vocabulary")
    parser.add_argument("--draft-vocabularies", type=int, nargs="+", default=[8192], help="rows of reduced heads")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    print(machine(), "", *report(options), sep="\n")


if __name__ == "__main__":
    main()
