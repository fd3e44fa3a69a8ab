"""What became of the prompts is pooled over the ranks and written once, in the order of the prompts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

from specdraft.bootstrap import read_counts
from specdraft.callbacks import SpeculativeDecoding
from specdraft.callbacks.prompt_counts import digest
from specdraft.decoding import DecodeResult, Request, RequestResult


def result(place: int) -> RequestResult:
    accepted = [place, 1]
    return RequestResult(
        list(range(3 + sum(accepted))), accepted, [4, 4], arrivals=[0.0, 0.5, 1.0 + place], prompt_tokens=1
    )


def test_two_ranks_with_unequal_shares(tmp_path: Path) -> None:
    requests = [Request([7, place], 9) for place in range(5)]
    sent: list[torch.Tensor] = []
    for rank in (1, 0):  # the second call stands for what the first one sent, too

        def reduce(values: torch.Tensor, reduce_op: str) -> torch.Tensor:
            sent.append(values)
            return torch.stack(sent).sum(0)

        trainer = SimpleNamespace(
            world_size=2,
            global_rank=rank,
            is_global_zero=rank == 0,
            global_step=40,
            log_dir=str(tmp_path),
            fast_dev_run=False,
            strategy=SimpleNamespace(reduce=reduce),
        )
        own = DecodeResult([result(place) for place in range(5)[rank::2]])
        SpeculativeDecoding()._keep(trainer, torch.device("cpu"), "val", requests, ["a"] * 5, own, own)  # type: ignore[arg-type]
        assert (tmp_path / "decoded").exists() == (rank == 0)
    found = read_counts(tmp_path, 40)
    assert list(found) == [digest([7, place]) for place in range(5)]
    for place, values in enumerate(found.values()):
        assert values.tolist() == [2, place + 1, 3 + place, 1.0 + place, 3 + place, 1.0 + place]
