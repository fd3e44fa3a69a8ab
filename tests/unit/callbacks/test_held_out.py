"""Which held-out prompts are decoded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specdraft.callbacks.held_out import held_out_requests
from specdraft.data.datamodule import HeldOutPrompt

PROMPTS = [HeldOutPrompt(f"row-{n}", "add" if n % 2 else "take", [1] * n, f"text {n}") for n in (10, 41, 20, 30)]


def chosen(tokens: int, count: int | None = None, prompts: Any = PROMPTS) -> list[str]:
    trainer: Any = SimpleNamespace(datamodule=SimpleNamespace(prompts=lambda split: prompts))
    spec = SimpleNamespace(max_position_embeddings=60)
    module = SimpleNamespace(target=SimpleNamespace(spec=spec, stop_token_ids=(3,)))
    requests, texts = held_out_requests(trainer, module, "val", count, tokens)
    assert [len(request.prompt_ids) for request in requests] == [int(text.split()[1]) for text in texts]
    assert all((r.max_new_tokens, r.stop_ids) == (tokens, (3,)) for r in requests)
    assert {r.workload for r in requests} <= {"add", "take"}
    return sorted(texts)


def test_prompts_that_the_target_cannot_hold_are_left_out_and_named() -> None:
    assert chosen(19) == ["text 10", "text 20", "text 30", "text 41"]
    with pytest.warns(UserWarning, match=r"1 of 4 val prompts are not decoded: .* the first is row-41, of 41 tokens"):
        assert chosen(20) == ["text 10", "text 20", "text 30"]
    with pytest.warns(UserWarning, match="2 of 4"):
        assert len(chosen(40, 2)) == 2  # as many as asked for, of those that fit
    with pytest.raises(ValueError, match="no val prompt with max_new_tokens 59 fits the target's 60 positions"):
        chosen(59)
    with pytest.raises(ValueError, match="has no val prompts to decode"):
        chosen(5, prompts=[])
