"""The files of the how-tos: all parts at once in a real run, and back from its checkpoint."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from documented import ROOT
from test_fit import scalars
from torch.nn import functional as F

from specdraft.commands import load_module
from specdraft.types import TargetSpec

Run = Callable[..., None]


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples")


def part(name: str, module: str) -> Any:
    return getattr(importlib.import_module(module), name)


def test_parts_train_decode_and_reload(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tiny_config.read_text()
    drafter = "DFlash\n    init_args: {num_layers: 1, block_size: 4, tap_norm: true}"
    own = "last_feature.LastFeature\n    init_args: {block_size: 4, sample_from_anchor: true}"
    assert drafter in whole
    tiny_config.write_text(whole.replace(drafter, own))
    run_cli(
        *("fit", "--config", tiny_config, "--model.corrector=token_before.TokenBefore", "--model.corrector.rank=8"),
        "--model.objective.init_args.weighting=reciprocal.Reciprocal",
        "--model.objective.init_args.prediction=focal.Focal",
        "--trainer.callbacks+=zero_prefix.ZeroPrefix",
    )
    values = scalars(tmp_path / "runs/tiny/v")
    assert values["decode/lossless"] == [1.0, 1.0]
    assert values["train/loss"][-1] < values["train/loss"][0]
    assert [values[f"train/weight_at/{k}"][0] for k in (1, 2, 3)] == pytest.approx([1, 1 / 2, 1 / 3])
    # nothing was accepted wherever the first draft was wrong
    assert values["val/zero_prefix"] == pytest.approx([1 - s for s in values["val/survival_at/1"]], abs=1e-6)
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    module = load_module(str(last), "cpu")
    assert type(module.drafter).__name__ == "LastFeature"
    assert isinstance(module.corrector, part("TokenBefore", "token_before"))
    assert module.drafter.num_drafts == 4
    capsys.readouterr()
    run_cli("generate", "--checkpoint", last, "--prompt", "add one and two", "--max_new_tokens=8")
    assert "output equal to AR" in capsys.readouterr().out


def test_the_drafter_decodes_as_it_trains() -> None:
    torch.manual_seed(0)
    spec = TargetSpec("t", hidden_size=16, vocab_size=32, num_layers=4, taps=(0, 2))
    drafter = part("LastFeature", "last_feature")(spec, block_size=4)
    torch.nn.init.normal_(drafter.slot)
    features, embeds = torch.randn(1, 9, spec.feature_size), torch.randn(1, 3, 4, 16)
    anchors = torch.tensor([[2, 5, 8]])
    where = torch.arange(9)[None]
    trained = drafter(features, embeds, anchors, torch.ones(1, 3, 4, dtype=torch.bool), torch.zeros_like(where), where)
    for place, anchor in enumerate(anchors[0].tolist()):
        cache = drafter.new_cache(1, 16)
        drafter.extend(features[:, :anchor], cache)
        cache.advance(anchor)
        torch.testing.assert_close(drafter.draft(embeds[:, place], cache), trained[:, place])


def test_the_loss_is_cross_entropy_with_less_weight_on_what_is_known() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(5, 7), torch.randint(7, (5,))
    loss = part("Focal", "focal")(gamma=2.0)
    cross_entropy = F.cross_entropy(logits, labels, reduction="none")
    known = torch.softmax(logits, -1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(loss.forward(logits, labels, None), (1 - known) ** 2 * cross_entropy)
    torch.testing.assert_close(part("Focal", "focal")(gamma=0.0).forward(logits, labels, None), cross_entropy)
