"""The same on a CUDA device: training in bf16-mixed, lossless decoding, the frozen-head loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specdraft.objectives import CrossEntropy, frozen_head_loss
from specdraft.seeds import seeded
from specdraft.targets import FrozenHead

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Run = Callable[..., None]


@pytest.mark.parametrize("extra", [[], ["--model.compile_drafter=true"], ["--model.draft_vocab_size=12"]])
def test_fit_in_mixed_precision(run_cli: Run, tiny_config: Path, tmp_path: Path, extra: list[str]) -> None:
    run_cli(
        *("fit", "--config", tiny_config, "--trainer.accelerator=gpu", "--trainer.precision=bf16-mixed"),
        *extra,
    )
    found = torch.load(tmp_path / "runs/tiny/v/checkpoints/last.ckpt", weights_only=True)
    drafter = {k: v for k, v in found["state_dict"].items() if k.startswith("drafter.")}
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in drafter.values())


def test_decoding_is_lossless_in_fp32(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli("fit", "--config", tiny_config, "--trainer.accelerator=gpu", "--model.target.dtype=float32")
    capsys.readouterr()
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    run_cli("generate", "--checkpoint", last, "--prompt", "add one and two", "--max_new_tokens=20", "--device=cuda")
    assert "output equal to AR" in capsys.readouterr().out


def test_frozen_head_loss_equals_the_cpu() -> None:
    torch.manual_seed(0)
    weight, hidden, rows = torch.randn(500, 32), torch.randn(64, 32), torch.randint(500, (64,))
    outs = []
    for device in ("cpu", "cuda"):
        leaf = hidden.to(device).requires_grad_()
        head = FrozenHead(weight.to(device))
        out = frozen_head_loss(leaf, head, rows.to(device), CrossEntropy(), None, None, 7)
        (gradient,) = torch.autograd.grad(out.loss.sum(), leaf)
        outs.append((out.loss.detach().cpu(), gradient.cpu()))
    for mine, reference in zip(outs[1], outs[0], strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-4, rtol=1e-4)


def test_dropout_of_a_step_depends_on_the_step_alone() -> None:
    device, ones = torch.device("cuda", 0), torch.ones(256, device="cuda")

    def mask(*where: int) -> torch.Tensor:
        with seeded(device, *where):
            return torch.nn.functional.dropout(ones, 0.5)

    first, before = mask(1, 0, 3, 0), torch.cuda.get_rng_state(device)
    assert mask(1, 0, 3, 0).equal(first)
    assert not mask(1, 0, 3, 1).equal(first)
    assert torch.cuda.get_rng_state(device).equal(before)
