"""``transformers.generate`` as a second baseline: what a user without an engine has."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList

from specdraft.decoding import DecodeResult, OnFinish, Request, RequestResult, SamplingParams
from specdraft.targets import load_model
from specdraft.types import RoundTiming


class HFGenerate:
    """The same target as an untouched model of transformers with its own cache and ``sdpa`` attention.

    Prompts are decoded in static batches, left-padded: a batch ends with its longest row, finished rows are not
    refilled.

    Args:
        path: Target by name or folder.
        dtype: Type of the weights.
        device: Where to compute.
    """

    def __init__(self, path: str, dtype: torch.dtype, device: torch.device) -> None:
        name: Any = str(dtype).removeprefix("torch.")
        self.model, _ = load_model(path, dtype=name, device=device)
        self.model.generation_config = GenerationConfig()  # the model's own stops and penalties are not asked for
        self.device = device

    def decode(
        self,
        requests: list[Request],
        *,
        params: SamplingParams | None = None,
        concurrency: int = 1,
        seed: int = 0,
        on_finish: OnFinish | None = None,
    ) -> DecodeResult:
        """Decode ``concurrency`` requests at a time; the arguments of ``autoregressive_decode``."""
        done = DecodeResult([])
        with torch.random.fork_rng(enabled=True):
            torch.manual_seed(seed)
            for start in range(0, len(requests), concurrency):
                for result in self._batch(requests[start : start + concurrency], params or SamplingParams(), done):
                    done.results.append(result)
                    if on_finish is not None:
                        on_finish(len(done.results) - 1, result)
        done.timing = RoundTiming(verify=done.decode_seconds)
        return done

    def _batch(self, requests: list[Request], params: SamplingParams, done: DecodeResult) -> list[RequestResult]:
        prompts = [torch.as_tensor(request.prompt_ids) for request in requests]
        longest, limit = max(map(len, prompts)), max(request.max_new_tokens for request in requests)
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = prompt
            mask[row, longest - len(prompt) :] = 1
        stops = sorted({int(token) for request in requests for token in request.stop_ids})
        sampling: dict[str, Any] = {"do_sample": False}
        if not params.greedy:
            sampling = {"do_sample": True, "temperature": params.temperature, "top_p": params.top_p}
            sampling["top_k"] = params.top_k
        config = GenerationConfig(
            max_new_tokens=limit,
            eos_token_id=stops or None,
            pad_token_id=stops[0] if stops else 0,
            **sampling,
        )
        watch = _Watch()
        began = perf_counter()
        out = self.model.generate(
            ids.to(self.device),
            attention_mask=mask.to(self.device),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([watch]),
        )
        fresh = out[:, longest:].tolist()
        arrivals = [moment - began for moment in watch.moments]
        done.prefill_seconds += arrivals[0]
        done.decode_seconds += arrivals[-1] - arrivals[0]
        done.steps += len(arrivals) - 1
        return [_result(row, request, arrivals) for row, request in zip(fresh, requests, strict=True)]


class _Watch:
    """Notes when each token of a batch is there; called by ``generate``, never stops it."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if input_ids.is_cuda:
            torch.cuda.synchronize(input_ids.device)  # or the moment of the launch would be noted
        self.moments.append(perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _result(row: list[int], request: Request, arrivals: list[float]) -> RequestResult:
    stop = next((i for i, token in enumerate(row) if token in request.stop_ids), len(row) - 1)
    tokens = row[: min(stop + 1, request.max_new_tokens)]
    zeros = [0] * (len(tokens) - 1)
    own = arrivals[: len(tokens)]
    return RequestResult(tokens, zeros, list(zeros), own[-1], len(request.prompt_ids), own)
