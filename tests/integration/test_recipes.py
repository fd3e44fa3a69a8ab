"""Every preset and overlay trains, every block size decodes, all taps with a fusion per layer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from specdraft.types import DraftBatch

ROOT = Path(__file__).parents[2] / "experiments"
PRESETS = sorted((ROOT / "parts").glob("objective_*.yaml"))
OVERLAYS = sorted((ROOT / "ablations").glob("dscout_*.yaml"))
Run = Callable[..., None]


def scalars(folder: Path) -> dict[str, list[float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check(values: dict[str, list[float]]) -> None:
    assert values["decode/lossless"] == [1.0, 1.0]
    assert all(torch.isfinite(torch.tensor(values[tag])).all() for tag in ("train/loss", "val/loss"))
    assert values["train/weight_at/1"][0] > 0
    assert "train/weight_at/3" in values


def test_all_recipes_are_there() -> None:
    names = {path.stem.removeprefix("objective_") for path in PRESETS}
    assert names >= {"dflash", "dscout", "dpace", "dspark", "auf", "l2r"}
    assert [path.stem.removeprefix("dscout_") for path in OVERLAYS] == [
        *("1_base", "2_mixed_horizon", "3_unmasking", "4_acceptance_weighted", "5_preset"),
        *("without_mixed_horizon", "without_unmasking"),
    ]


def test_last_overlay_is_the_preset() -> None:
    overlay, preset = (
        yaml.safe_load((ROOT / name).read_text())
        for name in ("ablations/dscout_5_preset.yaml", "parts/objective_dscout.yaml")
    )
    chosen = overlay["model"]["objective"]["init_args"]
    assert set(chosen) == {"inclusion", "weighting"}
    assert chosen == {name: preset["init_args"][name] for name in chosen}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.stem)
def test_preset_trains(run_cli: Run, tiny_config: Path, tmp_path: Path, preset: Path) -> None:
    run_cli("fit", "--config", tiny_config, "--model.objective", preset)
    check(scalars(tmp_path / "runs/tiny/v"))


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda p: p.stem)
def test_overlay_trains_under_its_own_name(run_cli: Run, tiny_config: Path, tmp_path: Path, overlay: Path) -> None:
    run_cli("fit", "--config", tiny_config, "--config", overlay)
    check(scalars(tmp_path / "runs" / overlay.stem / "v"))


SUM = {"class_path": "WeightedSum", "init_args": {"terms": ["CrossEntropy", "LKHybrid"], "weights": [0.5, 1.0]}}
LK = {"class_path": "AcceptedLength", "init_args": {"weight": 2.0, "prediction": "NegativeLogAcceptance"}}
OVERLAP = {"class_path": "AcceptanceWeighted", "init_args": {"score": "overlap", "form": "suffix_sum"}}
PRODUCT = {"class_path": "WeightProduct", "init_args": {"factors": ["ExponentialDecay", OVERLAP]}}


@pytest.mark.parametrize(
    ("options", "classes"),
    [
        (
            {"prediction": "NegativeLogAcceptance", "weighting": OVERLAP},
            ("NegativeLogAcceptance", "AcceptanceWeighted"),
        ),
        ({"prediction": SUM, "weighting": PRODUCT, "terms": [LK]}, ("WeightedSum", "WeightProduct")),
    ],
    ids=["acceptance", "sums"],
)
def test_parts_combine_in_yaml(
    run_cli: Run, tiny_config: Path, tmp_path: Path, options: dict[str, Any], classes: tuple[str, str]
) -> None:
    overlay = tmp_path / "parts.yaml"
    overlay.write_text(json.dumps({"model": {"objective": {"class_path": "Objective", "init_args": options}}}))
    run_cli("fit", "--config", tiny_config, "--config", overlay)
    check(scalars(tmp_path / "runs/tiny/v"))
    written = yaml.safe_load((tmp_path / "runs/tiny/v/config.yaml").read_text())["model"]["objective"]["init_args"]
    found = tuple(written[name]["class_path"].rsplit(".", 1)[-1] for name in ("prediction", "weighting"))
    assert found == classes
    assert len(written["terms"] or []) == len(options.get("terms", []))


def test_shares_of_the_makefile_are_what_the_overlays_supervise() -> None:
    """Supervised slots against the base with blocks of 8 that draft from the anchor, long rows, many anchors."""
    from specdraft.cli import configured

    makefile = (ROOT.parent / "Makefile").read_text()
    wanted = {name: int(share) for name, share in re.findall(r"PERCENT_(\w+) := (\d+)", makefile)}
    assert set(wanted) == {path.stem for path in OVERLAYS}
    rows, length = 8, 400
    tokens = torch.arange(rows * length).view(rows, length) % 40
    positions = torch.arange(length).expand(rows, length)
    batch = DraftBatch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens), positions)
    slots = {}
    for overlay in OVERLAYS:
        module, _, _ = configured(["--config", str(ROOT / "quickstart.yaml"), "--config", str(overlay)])
        module.objective.num_anchors = 200
        generator = torch.Generator().manual_seed(0)
        blocks = module.objective.blocks(batch, block_size=8, first_slot=0, mask_token_id=0, generator=generator)
        slots[overlay.stem] = int(blocks.supervised.sum())
    for name, count in slots.items():
        assert 100 * count / slots["dscout_1_base"] == pytest.approx(wanted[name], abs=2.5), name


@pytest.mark.parametrize("preset", ["dpace", "l2r"])
def test_accumulation_equals_one_large_batch(run_cli: Run, tiny_config: Path, tmp_path: Path, preset: str) -> None:
    # every anchor and no coin, so that both runs see the same blocks: dynamic weights and the chain term are pooled
    fixed = ["--model.objective", ROOT / f"parts/objective_{preset}.yaml", "--model.objective.init_args.num_anchors=64"]
    fixed += ["--trainer.max_steps=2", "--trainer.gradient_clip_val=null"]
    big = ["--data.init_args.batch_size=6", "--trainer.val_check_interval=2", "--trainer.logger.version=big"]
    run_cli("fit", "--config", tiny_config, *fixed, *big)
    small = ["--trainer.accumulate_grad_batches=2", "--trainer.val_check_interval=4"]
    run_cli("fit", "--config", tiny_config, *fixed, *small)
    states = [
        torch.load(tmp_path / f"runs/tiny/{version}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for version in ("big", "v")
    ]
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-3, atol=2e-4)


def test_curriculum_and_anchor_slot(run_cli: Run, tiny_config: Path, tmp_path: Path) -> None:
    inclusion = "--model.objective.init_args.inclusion"
    run_cli(
        *("fit", "--config", tiny_config, f"{inclusion}=MixedHorizon", f"{inclusion}.horizons=[2,4]"),
        *(f"{inclusion}.probabilities=[0.0,1.0]", f"{inclusion}.initial_probabilities=[1.0,0.0]"),
        *(f"{inclusion}.curriculum=0.5", "--model.drafter.init_args.sample_from_anchor=true"),
    )
    values = scalars(tmp_path / "runs/tiny/v")
    assert len(values["train/weight_at/2"]) == 6
    assert len(values["train/weight_at/4"]) == 5  # the first of six steps has short blocks only
    assert values["decode/lossless"] == [1.0, 1.0]


def test_all_taps_fused_per_layer_decode_at_every_block_size(
    run_cli: Run, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli(
        *("fit", "--config", tiny_config, "--model.target.taps=all"),
        *("--model.drafter.init_args.layer_fusion=true", "--model.drafter.init_args.num_layers=2"),
        *("--model.objective", ROOT / "parts/objective_dscout.yaml"),
    )
    last = tmp_path / "runs/tiny/v/checkpoints/last.ckpt"
    found = torch.load(last, weights_only=True)
    assert found["specdraft"]["spec"]["taps"] == [0, 1, 2, 3]
    assert found["state_dict"]["drafter.tap_mix"].shape == (2, 4)
    for size in (2, 3, 4):
        capsys.readouterr()
        words = ("--prompt", "add one and two", "--max_new_tokens=10", f"--block_size={size}")
        run_cli("generate", "--checkpoint", last, *words)
        assert "output equal to AR" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"block_size 5 must be in 2\.\.4"):
        run_cli("generate", "--checkpoint", last, "--prompt", "add one and two", "--block_size=5")


def test_horizon_above_the_block_size_is_refused(run_cli: Run, tiny_config: Path) -> None:
    inclusion = "--model.objective.init_args.inclusion"
    with pytest.raises(ValueError, match="horizon 8 is larger than the drafter's block size 4"):
        run_cli("fit", "--config", tiny_config, f"{inclusion}=MixedHorizon", f"{inclusion}.horizons=[4,8]")
