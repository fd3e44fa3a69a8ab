"""Let the target answer prompts, so that a drafter learns the target's own words."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from specdraft.decoding import SamplingParams
from specdraft.progress import Progress
from specdraft.regenerate.answers import AnswerFile
from specdraft.regenerate.clients import Clients
from specdraft.regenerate.conversations import read_conversations
from specdraft.regenerate.engine import Engine
from specdraft.regenerate.server import ChatServer
from specdraft.targets import load_target


def regenerate(
    prompts: str,
    out: str,
    target: str = "smollm2-135m-instruct",
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    concurrency: int = 32,
    limit: int | None = None,
    extend: bool = False,
    dtype: str = "auto",
    device: str = "auto",
    seed: int = 0,
    endpoint: str | None = None,
    model: str | None = None,
    timeout: float = 600.0,
    patience: float = 600.0,
    template_options: dict[str, Any] | None = None,
) -> None:
    """Let the target answer prompts, so that a drafter learns the target's own words.

    Writes one JSON line per row in the order of the rows: the row's fields and ``response``, or ``messages`` where the
    user speaks more than once; there the target answers turn by turn, with its earlier answers before it. An
    interrupted run goes on with the rows that have no answer yet, whatever their order; a row is known by its ``id``
    and what it asks. A row that cannot be answered (longer than the context, refused by chat template or server) is
    left out, counted and named at the end; a conversation that outgrows the context keeps the answers that it got.

    With ``endpoint`` an OpenAI-compatible server answers (vLLM, SGLang, ``transformers serve``). It gives texts and not
    token ids: they are stored as they come, and tokenising them may differ from what the server drew, which the
    built-in engine avoids by storing ids where it matters. Start it without a reasoning parser. Failures that may pass
    (no connection, time-outs, HTTP 429 and 5xx) are tried again, so that a restart of the server is survived.

    Args:
        prompts: File (JSONL, JSON, Parquet) or data set of the hub with ``prompt``, ``turns`` or ``messages`` and any
            other fields, an evaluation set, ``embedded:train`` or ``embedded:heldout``.
        out: JSONL file to write; ``.gz`` and ``.xz`` compress.
        target: Target by name or folder; not used with ``endpoint``.
        max_new_tokens: Tokens per answer at most.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus of the target's distribution.
        top_k: Candidates of the target's distribution; 0 keeps all.
        concurrency: Requests in flight.
        limit: Answer only the first so many rows.
        extend: Keep the answers that a finished ``out`` holds and answer the rows that are new.
        dtype: Type of the target's weights: float32, bfloat16 or auto.
        device: auto, cpu or cuda.
        seed: Seed of the sampling.
        endpoint: Address of a server, such as http://localhost:8000, that answers in place of the built-in engine.
        model: Name of the model as the server calls it.
        timeout: Seconds without a byte from the server until a request is given up and tried again.
        patience: Seconds that failures of a request may last before the run ends with an error.
        template_options: Further variables of the chat template, such as {"enable_thinking": false}; the data module
            of the training needs the same.

    Raises:
        FileExistsError: If ``out`` is finished and is not to be extended.
        ValueError: If two rows are one, an interrupted run had other settings, or an option does not fit.
        ServerError: If the server refuses a row or fails for too long, naming the row and what the server said.
    """
    params = SamplingParams(temperature, top_p, top_k)
    rows = read_conversations(prompts, limit)
    server = _server(endpoint, model, params, max_new_tokens, timeout, patience, template_options)
    settings: dict[str, Any] = {
        "answered_by": "engine" if server is None else "server",
        "target": target if server is None else model,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
    }
    if template_options:
        settings["template_options"] = template_options
    with AnswerFile(Path(out), settings, extend) as answers:
        missing = [row for key, row in rows.items() if key not in answers and key not in answers.refused]
        source: Engine | Clients | None = None
        if missing:
            source = (
                Clients(server, concurrency, seed)
                if server is not None
                else Engine(_loaded(target, dtype, device), params, max_new_tokens, concurrency, seed, template_options)
            )
        with Progress(len(rows), len(rows) - len(missing), name="regenerate") as bar:
            for group in source.answer(missing, answers.done) if source is not None else ():
                refused = {row.key: row.refused for row in group if row.refused}
                answers.add({row.key: row.answered() for row in group if row.answers}, refused)
                bar.update(len(group), source.note if source is not None else "")
        found = [key for key in rows if key in answers]
        unanswered = [(row.name, answers.refused[key]) for key, row in rows.items() if key in answers.refused]
        if unanswered and not found:
            raise ValueError(f"none of {len(rows)} rows could be answered; {_first(unanswered)}")
        answers.finish(found)
    if unanswered:
        begun = sum(key in answers.refused for key in found)
        warnings.warn(
            f"{len(unanswered)} of {len(rows)} rows could not be answered; {begun} of them are kept up to their last "
            f"answer, the others left out (--extend tries those again); {_first(unanswered)}",
            stacklevel=2,
        )


def _first(refused: list[tuple[str, str]]) -> str:
    name, why = refused[0]
    return f"the first, {name!r}: {why}"


def _server(
    endpoint: str | None,
    model: str | None,
    params: SamplingParams,
    limit: int,
    timeout: float,
    patience: float,
    options: dict[str, Any] | None,
) -> ChatServer | None:
    if endpoint is None:
        if model is not None:
            raise ValueError(f"model {model!r} names a model of a server: give its address as --endpoint too")
        return None
    if model is None:
        raise ValueError(f"name the model as the server at {endpoint} calls it: --model NAME")
    return ChatServer(endpoint, model, params, limit, timeout=timeout, patience=patience, options=options)


def _loaded(target: str, dtype: str, device: str) -> Any:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    return load_target(target, dtype=dtype, device=device)  # type: ignore[arg-type]
