"""The recipes of the papers parse, build without data, and say what they take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specdraft.estimate.target import published

ROOT = Path(__file__).parents[2] / "experiments"
NAMES = ["dcoco", "dflash", "domino", "dscout", "dspark", "selector"]
Run = Callable[..., None]


def numbers(printed: str) -> dict[str, float]:
    """GiB by part."""
    lines = [line.rsplit(maxsplit=1) for line in printed.splitlines() if line.startswith("  ") and " GB " not in line]
    return {name.strip(): float(value) for name, value in lines}


def test_both_targets_have_every_recipe_and_differ_in_the_target_alone() -> None:
    for folder in ("qwen3-8b", "qwen3-4b"):
        assert sorted(path.stem for path in (ROOT / folder).glob("*.yaml")) == NAMES
    for name in NAMES:
        large, small = ((ROOT / folder / f"{name}.yaml").read_text() for folder in ("qwen3-8b", "qwen3-4b"))
        assert large.replace("qwen3-8b", "qwen3-4b").replace("Qwen3-8B", "Qwen3-4B") == small


@pytest.mark.parametrize("name", NAMES)
def test_recipe_prints_its_estimate(run_cli: Run, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder = "qwen3-4b" if name == "dcoco" else "qwen3-8b"
    run_cli("estimate", "--config", ROOT / folder / f"{name}.yaml", "--device", "h100", "--rows", 800_000)
    printed = capsys.readouterr().out
    parts = numbers(printed)
    assert sum(value for part, value in parts.items() if part != "together") == pytest.approx(
        parts["together"], abs=0.1
    )
    assert "fits 80 GB" in printed
    assert "hours for 6 epochs" in printed
    assert "25,000 steps per epoch" in printed
    if name == "dflash":
        assert "drafter     1,048,626,432 parameters" in printed
        assert parts["target (bfloat16)"] == pytest.approx(2 * 8_190_735_360 / 2**30, abs=0.01)
        assert parts["optimizer state"] == pytest.approx(2 * parts["drafter weights"], abs=0.02)
        assert parts["gradients"] == parts["gradient buckets"] == parts["drafter weights"]
        assert "2 x 3072 tokens, 512 anchors each, per rank (ranks 8, accumulated 2)" in printed
        assert "stored features: 40,960 bytes per token" in printed
    if name == "dcoco":
        assert "corrector   1,443,073 parameters" in printed


def test_options_of_the_run_change_the_estimate(
    run_cli: Run, capsys: pytest.CaptureFixture[str], tiny_config: Path
) -> None:
    printed = []
    words = ("estimate", "--config", tiny_config)
    more = ["model.corrector=DCOCO", "model.corrector.candidates=4", "trainer.devices=4"]
    for options in ([], ["--set", *more], [*(f"--{word}" for word in more), "--set", "trainer.strategy=fsdp2"]):
        run_cli(*words, *options, "--kernels", "cpu", "--tflops", 1)
        printed.append(capsys.readouterr().out)
    plain, corrected, sharded = printed
    # a folder with config.json serves as well as a packaged configuration
    assert "tiny-target" in plain
    assert "time of 6 steps" in plain
    assert "corrector   0 parameters" in plain
    assert "corrector   0 parameters" not in corrected
    assert "gradient buckets" in corrected
    assert "gathered weights" in sharded


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--device", "abacus"], "device 'abacus' is unknown; use one of a100"),
        (["--utilization", 2], r"utilization must be in \(0, 1\], got 2"),
        (["--set", "model.target.path=./nowhere"], "there is no folder './nowhere'"),
    ],
)
def test_bad_options_are_named(run_cli: Run, tiny_config: Path, options: list[object], match: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        run_cli("estimate", "--config", tiny_config, *options)


def test_packaged_configurations_name_their_source() -> None:
    for name, fields in published().items():
        assert fields["source"].startswith("https://huggingface.co/" + name)


def test_type_on_disk_changes_what_is_stored_but_not_the_step(
    run_cli: Run, capsys: pytest.CaptureFixture[str], tiny_config: Path
) -> None:
    printed = {}
    for dtype in (None, "bfloat16", "int8"):
        options = ("features=CachedFeatures", f"features.init_args.dtype={dtype}") if dtype else ()
        words = ["--set", *(f"data.init_args.{option}" for option in options)] if options else []
        run_cli("estimate", "--config", tiny_config, "--kernels", "cpu", *words)
        printed[dtype] = capsys.readouterr().out
    # 2 taps of 32 values; int8 has a scale in fp32 for each tap beside them
    for dtype, size in {None: 2 * 32 * 4, "bfloat16": 2 * 32 * 2, "int8": 2 * 32 + 2 * 4}.items():
        assert f"stored features: {size} bytes per token" in printed[dtype]
    memory = [text[text.index("memory of a rank") : text.index("work of")] for text in printed.values()]
    assert memory[0] == memory[1] == memory[2]


@pytest.mark.parametrize("batching", ["Packed", "Bucketed"])
def test_conversations_are_not_divided_by_batches_whose_number_of_them_is_open(
    run_cli: Run, tiny_config: Path, batching: str
) -> None:
    options = [f"data.init_args.batching={batching}", "data.init_args.batching.init_args.tokens_per_batch=4096"]
    with pytest.raises(ValueError, match=rf"depends on the lengths .* with {batching}.*leave out rows \(--rows\)"):
        run_cli("estimate", "--config", tiny_config, "--rows", 100, "--set", *options)
