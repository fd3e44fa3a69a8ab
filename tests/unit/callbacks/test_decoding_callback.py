"""When the decoding callback measures, and where it may stand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn
from torch.distributed.fsdp import FSDPModule

from specdraft.callbacks import SpeculativeDecoding
from specdraft.callbacks.hparams import part_name

STORED = {"validations": 1, "last_values": {"decode/mat": 9.0}}


class Logging:
    """Stands for the module."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}

    def log(self, name: str, value: float, **_: Any) -> None:
        self.logged[name] = value

    def log_dict(self, values: dict[str, float], **_: Any) -> None:
        self.logged |= values


def run(stage: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Decoded MAT of two validations behind a checkpoint that was saved after one."""
    monkeypatch.setattr(SpeculativeDecoding, "_measure", lambda *_: {"decode/mat": 2.0})
    callback, module = SpeculativeDecoding(every_n_validations=2), Logging()
    trainer: Any = SimpleNamespace(datamodule=object(), callbacks=[callback], sanity_checking=False)
    callback.setup(trainer, module, stage)  # type: ignore[arg-type]
    callback.load_state_dict(STORED)
    seen = []
    for _ in range(2):
        callback.on_validation_epoch_end(trainer, module)  # type: ignore[arg-type]
        seen.append(module.logged["decode/mat"])
    return seen


def test_validation_of_a_checkpoint_measures_what_a_resumed_training_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("fit", monkeypatch) == [9.0, 2.0]
    assert run("validate", monkeypatch) == [2.0, 2.0]


def test_averaged_weights_are_decoded_or_refused() -> None:
    callback, averaging = SpeculativeDecoding(), EMAWeightAveraging(use_buffers=False)
    trainer: Any = SimpleNamespace(datamodule=object(), callbacks=[callback, averaging])
    callback.setup(trainer, None, "fit")  # type: ignore[arg-type]
    trainer.callbacks.reverse()
    with pytest.raises(ValueError, match=r"list SpeculativeDecoding first in trainer\.callbacks"):
        callback.setup(trainer, None, "fit")  # type: ignore[arg-type]


def test_second_callback_needs_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = SpeculativeDecoding(), SpeculativeDecoding(name="sampled", temperature=1.0)
    assert first.state_key == "SpeculativeDecoding"  # as in checkpoints that are older than names
    assert second.state_key != first.state_key
    monkeypatch.setattr(SpeculativeDecoding, "_measure", lambda *_: {"decode/mat": 2.0, "decode/round_ms/draft": 1.0})
    module = Logging()
    second.on_validation_epoch_end(SimpleNamespace(sanity_checking=False), module)  # type: ignore[arg-type]
    assert module.logged == {"sampled/mat": 2.0, "sampled/round_ms/draft": 1.0}
    for name in ("val", "a/b", "val-1", ""):
        with pytest.raises(ValueError, match="name must be a word"):
            SpeculativeDecoding(name=name)


def test_sharded_part_keeps_its_name() -> None:
    part = nn.Linear(1, 1)
    part.__class__ = type("FSDPLinear", (FSDPModule, nn.Linear), {})  # as fully_shard does
    assert part_name(part) == "Linear"


@pytest.mark.parametrize(
    ("option", "value", "least"),
    [("num_prompts", 0, 1), ("block_size", 0, 1), ("concurrency", 0, 1), ("max_new_tokens", 1, 2)],
)
def test_what_would_decode_nothing_is_refused(option: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least {least}, got {value}"):
        SpeculativeDecoding(**{option: value})
