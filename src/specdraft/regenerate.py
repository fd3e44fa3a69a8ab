"""Let the target answer prompts, so that a drafter learns the target's own words."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from specdraft.commands import encode_prompt, prompt_rows, whole_lines
from specdraft.decoding import Request, SamplingParams, autoregressive_decode
from specdraft.targets import load_target

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}


def regenerate(
    prompts: str,
    out: str,
    target: str = "smollm2-135m-instruct",
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    concurrency: int = 32,
    limit: int | None = None,
    extend: bool = False,
    dtype: str = "auto",
    device: str = "auto",
    seed: int = 0,
) -> None:
    """Let the target answer prompts, so that a drafter learns the target's own words.

    Writes one JSON line per prompt in the order of the prompts: the row's fields and ``response``. An interrupted run
    goes on with the rows that have no answer yet, whatever their order; a row is known by its ``id`` and prompt.

    Args:
        prompts: JSONL file with ``prompt`` (and any other fields), or ``embedded:train`` / ``embedded:heldout``.
        out: JSONL file to write; ``.gz`` and ``.xz`` compress.
        target: Target by name or folder.
        max_new_tokens: Tokens per answer at most.
        temperature: Sampling temperature; 0 is greedy.
        concurrency: Requests in flight.
        limit: Answer only the first so many prompts.
        extend: Keep the answers that a finished ``out`` holds and answer the prompts that are new.
        dtype: Type of the target's weights: float32, bfloat16 or auto.
        device: auto, cpu or cuda.
        seed: Seed of the sampling.

    Raises:
        FileExistsError: If ``out`` is finished and is not to be extended.
        ValueError: If two prompts are one row, or an interrupted run had other settings.
    """
    rows = _by_key(prompt_rows(prompts)[:limit], prompts)
    path = Path(out)
    part = path.with_name(path.name + ".part.jsonl")
    settings = {"target": target, "max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    answers = _known_answers(path, part, settings, extend)
    missing = [key for key in rows if key not in answers]
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if missing:
        model = load_target(
            target, dtype="bfloat16" if dtype == "auto" and device == "cuda" else "float32", device=device
        )
    params, chunk = SamplingParams(temperature), 8 * concurrency
    with part.open("a", encoding="utf-8") as file:
        for start in range(0, len(missing), chunk):
            keys = missing[start : start + chunk]
            requests = [
                Request(encode_prompt(model.tokenizer, rows[key]["prompt"]), max_new_tokens, model.stop_token_ids)
                for key in keys
            ]
            generator = torch.Generator(device=model.device).manual_seed(seed + len(answers))
            result = autoregressive_decode(model, requests, params=params, concurrency=concurrency, generator=generator)
            for key, answer in zip(keys, result.results, strict=True):
                answers[key] = json.dumps({**rows[key], **_answer_fields(model, answer.tokens)}, ensure_ascii=False)
                file.write(answers[key] + "\n")
            file.flush()
            os.fsync(file.fileno())
            done = start + len(keys)
            print(f"{done} of {len(missing)} rows, {result.tokens_per_second:.0f} tokens/s", flush=True)
    scratch = path.with_name(path.name + ".tmp")
    with _opened(scratch, path.suffix, "wt") as packed:
        packed.writelines(answers[key] + "\n" for key in rows)
    os.replace(scratch, path)
    part.unlink()
    _settings_file(part).unlink(missing_ok=True)


def row_key(row: dict[str, Any]) -> str:
    """Name of a row: its ``id``, if it has one, and a digest of its prompt, so that a changed prompt is another row."""
    digest = hashlib.sha256(row["prompt"].encode()).hexdigest()[:16]
    return f"{row.get('id', '')}:{digest}"


def _by_key(rows: list[dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows, 1):
        key = row_key(row)
        if key in out:
            raise ValueError(f"{name}: row {number} ({row.get('id', row['prompt'][:40])!r}) occurs twice; keep it once")
        out[key] = row
    return out


def _known_answers(path: Path, part: Path, settings: dict[str, Any], extend: bool) -> dict[str, str]:
    """Lines that are answered already, by the key of their row; starts the partial file."""
    note, lines = _settings_file(part), whole_lines(part)
    if lines and note.exists() and (found := json.loads(note.read_text(encoding="utf-8"))) != settings:
        raise ValueError(
            f"{part} was begun with {found}, not {settings}; give the same settings, or delete it to start anew"
        )
    if path.exists():
        if not extend:
            raise FileExistsError(f"{path} is finished; --extend keeps its answers, or name another file")
        with _opened(path, path.suffix, "rt") as file:
            lines = file.read().splitlines() + lines
    part.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(settings), encoding="utf-8")
    return {row_key(json.loads(line)): line for line in lines if line}


def _settings_file(part: Path) -> Path:
    return part.with_suffix(".settings.json")


def _answer_fields(model: Any, tokens: list[int]) -> dict[str, Any]:
    """Text of an answer; ``finished`` is false when the limit cut it; ids where the text does not give them back."""
    finished = bool(tokens) and tokens[-1] in model.stop_token_ids
    body = tokens[:-1] if finished else tokens
    text = model.tokenizer.decode(body, skip_special_tokens=True)
    fields: dict[str, Any] = {"response": text}
    if not finished:
        fields["finished"] = False
    if model.tokenizer(text, add_special_tokens=False)["input_ids"] != body:
        fields["response_ids"] = tokens
    return fields


@contextmanager
def _opened(path: Path, suffix: str, mode: str) -> Iterator[IO[str]]:
    with _OPENERS.get(suffix, open)(path, mode, encoding="utf-8") as file:
        yield file
