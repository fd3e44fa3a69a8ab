"""Answers of ``specdraft regenerate`` against ``transformers.generate``, the same prompts in batches of the same size.

    python benchmarks/regeneration.py [--rows 128 --tokens 256 --concurrency 32 --turns 1]

Greedy, with the target's own stops: ``generate`` ends a batch with its longest answer, the engine refills rows that
end. Whole times, tokenising and what the engine checks and stores included; prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import time

from measure import table

from specdraft.bench.hf_generate import HFGenerate
from specdraft.commands import encode_messages
from specdraft.decoding import Request, SamplingParams
from specdraft.regenerate.conversations import Conversation, read_conversations
from specdraft.regenerate.engine import Engine
from specdraft.targets import HFTarget, load_target


def rows_of(source: str, count: int) -> list[Conversation]:
    """Fresh rows, without answers."""
    return list(read_conversations(source, count).values())


def by_engine(target: HFTarget, rows: list[Conversation], tokens: int, concurrency: int) -> list[list[int]]:
    """Tokens of every answer."""
    engine = Engine(target, SamplingParams(), tokens, concurrency)
    for _ in engine.answer(rows):
        pass
    return [row.answers[0].ids or [] for row in rows]


def by_generate(
    plain: HFGenerate, target: HFTarget, rows: list[Conversation], tokens: int, batch: int
) -> list[list[int]]:
    """Tokens of every answer."""
    prompts = [encode_messages(target.tokenizer, row.context() or []) for row in rows]
    requests = [Request(ids, tokens, target.stop_token_ids) for ids in prompts]
    return [list(found.tokens) for found in plain.decode(requests, concurrency=batch).results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--prompts", default="embedded:train")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    target = load_target(options.target, dtype="float32", device="cpu")
    plain = HFGenerate(target.spec.name, target.dtype, target.device)
    by_engine(target, rows_of(options.prompts, 1), 4, 1)  # weights are packed once
    seconds: dict[str, list[float]] = {"engine": [], "generate": []}
    found: dict[str, list[list[int]]] = {}
    for _ in range(options.turns):
        for name in seconds:
            rows = rows_of(options.prompts, options.rows)
            began = time.perf_counter()
            if name == "engine":
                found[name] = by_engine(target, rows, options.tokens, options.concurrency)
            else:
                found[name] = by_generate(plain, target, rows, options.tokens, options.concurrency)
            seconds[name].append(time.perf_counter() - began)
    lengths = [len(ids) for ids in found["engine"]]
    same = sum(a == b for a, b in zip(found["engine"], found["generate"], strict=True))
    whole = {name: statistics.median(taken) for name, taken in seconds.items()}
    cells = [[name, whole[name], sum(map(len, found[name])) / whole[name]] for name in whole]
    print(
        f"### Regeneration, {len(lengths)} rows of {options.prompts}, {options.concurrency} at a time, at most "
        f"{options.tokens} tokens\n"
    )
    print("\n".join(table(["", "seconds", "tokens/s"], cells)))
    print(
        f"\nThe engine is {whole['generate'] / whole['engine']:.2f} times as fast; {same} of {len(lengths)} answers "
        f"are equal. Answers have {statistics.mean(lengths):.0f} tokens in the mean, {max(lengths)} at most."
    )


if __name__ == "__main__":
    main()
