"""Two processes train as one does: same loss, same weights, no hang, pooled metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specdraft.data.sampler import EpochBatchSampler
from tests.conftest import write_tiny_config

HERE = Path(__file__).parent
Run = Callable[..., None]
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]
SHARDED = ["--trainer.devices=2", "--trainer.strategy=fsdp2"]
# every anchor is drawn, so that the batches hold the same blocks however they are shared out
EVERY_ANCHOR = "--model.objective.init_args.num_anchors=64"
EQUAL = [EVERY_ANCHOR, "--trainer.max_steps=10", "--trainer.val_check_interval=5", "--data.init_args.max_rows=18"]
EQUAL += ["--model.corrector=DCOCO", "--model.corrector.candidates=4"]
# one rate, so that a run that goes on is one that never stopped
EQUAL += ["--model.lr_scheduler=CosineWithWarmup", "--model.lr_scheduler.warmup=0", "--model.lr_scheduler.final=1"]
BARREN = [EVERY_ANCHOR, "--data.init_args.min_labels=1", "--trainer.max_steps=6", "--trainer.val_check_interval=6"]


def scalars(folder: Path) -> dict[str, list[float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    # it shifts the scores of all candidates alike: its gradient is rounding noise, which Adam makes steps of
    state.pop("corrector.mlp_out.bias", None)
    return state


def barren_rows(path: Path) -> Path:
    """Twelve rows; eight of them have one label, so that no anchor fits."""
    rows = [
        {"id": f"r{i}", "prompt_ids": [10 + i, 11], "response_ids": [12 + i] * (5 if i % 3 == 0 else 1)}
        for i in range(12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Runs:
    """A folder with what one and two processes made of the same runs."""

    def __init__(self, folder: Path, config: Path, barren: Path, held_out: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs/tiny"
        fit = ["fit", "--config", str(config)]
        data = [f"--data.init_args.train={barren}", f"--data.init_args.val={held_out}"]
        # the second rank has nothing to decode
        one_prompt = folder / "one_prompt.yaml"
        one_prompt.write_text(config.read_text().replace("num_prompts: 3", "num_prompts: 1"))
        last = str(self.runs / "equal/checkpoints/last.ckpt")
        more = [*fit, *EQUAL, "--trainer.max_steps=12", "--trainer.val_check_interval=2", "--ckpt_path"]
        self.words = {
            "equal": [*fit, *EQUAL],
            "unbroken": more[:-1],
            "resumed": [*more, last],
            "resumed-sharded": [*more, str(self.runs / "sharded/checkpoints/last.ckpt")],
            "barren": [*fit, *BARREN, *data],
            "one_prompt": ["validate", "--config", str(one_prompt), *EQUAL[4:], "--ckpt_path", last],
        }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path, chat_file: Path) -> Runs:
    folder = tmp_path_factory.mktemp("two")
    config = write_tiny_config(folder, tiny_target, chat_file)
    out = Runs(folder, config, barren_rows(folder / "barren.jsonl"), chat_file)
    plan = [
        [*out.words["equal"], *TWO, "--data.init_args.batch_size=2", "--trainer.logger.version=equal"],
        [*out.words["barren"], *TWO, "--data.init_args.batch_size=1", "--trainer.logger.version=barren"],
        [*out.words["one_prompt"], *TWO, "--trainer.logger.version=validated"],
        [*out.words["equal"], *SHARDED, "--data.init_args.batch_size=2", "--trainer.logger.version=sharded"],
        [*out.words["one_prompt"], *SHARDED, "--trainer.logger.version=validated-sharded"],
        [*out.words["unbroken"], *TWO, "--data.init_args.batch_size=2", "--trainer.logger.version=unbroken"],
        [*out.words["resumed"], *TWO, "--data.init_args.batch_size=2", "--trainer.logger.version=resumed"],
        [*out.words["resumed-sharded"], *SHARDED, "--data.init_args.batch_size=2", "--trainer.logger.version=again"],
    ]
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    # a rank that waits for the other for ever is a failure, not a stuck suite
    done = subprocess.run(
        [*command, str(HERE / "rank_runs.py"), str(folder / "plan.json")],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def same(one: dict[str, list[float]], two: dict[str, list[float]], *tags: str, rel: float = 1e-5) -> None:
    for tag in tags:
        assert two[tag] == pytest.approx(one[tag], rel=rel), tag


@pytest.mark.ddp
def test_loss_weights_and_metrics_equal_those_of_one_process(runs: Runs, run_cli: Run) -> None:
    run_cli(*runs.words["equal"], "--data.init_args.batch_size=4", "--trainer.logger.version=equal-1")
    one, two = (scalars(runs.runs / name) for name in ("equal-1", "equal"))
    same(one, two, "train/loss", "train/supervised_slots", "train/accuracy", "val/loss")
    same(one, two, "train/grad_norm", rel=1e-4)
    # five held-out rows for two ranks with batches of two, three prompts to decode: neither divides evenly
    same(one, two, "val/mat", "val/base_mat", "val/survival_at/1", "decode/mat", "decode/mat_prompt_mean")
    assert two["decode/num_prompts"] == one["decode/num_prompts"] == [3.0, 3.0]
    assert len(two["train/loss"]) == 10
    expected = weights(runs.runs / "equal-1")
    for key, value in weights(runs.runs / "equal").items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-4)


@pytest.mark.ddp
def test_ranks_without_anchors_neither_hang_nor_count(runs: Runs, run_cli: Run) -> None:
    shards = [EpochBatchSampler(12, 1, seed=1, rank=rank, world_size=2).order() for rank in range(2)]
    with_anchors = [(a % 3 == 0) + (b % 3 == 0) for a, b in zip(*shards, strict=True)]
    assert {0, 1} <= set(with_anchors)  # steps with anchors on one rank only, and on none
    run_cli(*runs.words["barren"], "--data.init_args.batch_size=2", "--trainer.logger.version=barren-1")
    one, two = (scalars(runs.runs / name) for name in ("barren-1", "barren"))
    same(one, two, "train/loss", "train/supervised_slots", "train/skipped_steps")
    assert two["train/skipped_steps"][-1] == with_anchors.count(0)
    assert [slots > 0 for slots in two["train/supervised_slots"]] == [count > 0 for count in with_anchors]
    expected = weights(runs.runs / "barren-1")
    for key, value in weights(runs.runs / "barren").items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-4)


@pytest.mark.ddp
def test_validation_of_a_checkpoint_is_pooled(runs: Runs) -> None:
    fitted, again = (scalars(runs.runs / name) for name in ("equal", "validated"))
    assert again["decode/num_prompts"] == [1.0]
    for tag in ("val/mat", "val/loss"):
        assert again[tag][-1] == pytest.approx(fitted[tag][-1], rel=1e-5)
    # a strategy that shards to train has whole weights to validate
    same(again, scalars(runs.runs / "validated-sharded"), "val/mat", "val/loss", "decode/mat", "decode/num_prompts")


@pytest.mark.ddp
def test_both_strategies_resume(runs: Runs) -> None:
    whole, sharded = (scalars(runs.runs / name) for name in ("resumed", "again"))
    assert len(whole["train/loss"]) == 2
    same(whole, sharded, "train/loss", "val/loss")
    expected = weights(runs.runs / "resumed")
    unbroken = weights(runs.runs / "unbroken")
    for key, value in expected.items():
        torch.testing.assert_close(value, unbroken[key], rtol=0, atol=1e-7)
    for key, value in weights(runs.runs / "again").items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-4)


@pytest.mark.ddp
def test_sharded_parameters_train_as_whole_ones_do(runs: Runs, run_cli: Run) -> None:
    whole, sharded = (scalars(runs.runs / name) for name in ("equal", "sharded"))
    same(whole, sharded, "train/loss", "val/loss", "val/mat", "decode/mat")
    same(whole, sharded, "train/grad_norm", rel=1e-4)
    expected = weights(runs.runs / "equal")
    found = weights(runs.runs / "sharded")
    assert found.keys() == expected.keys()
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-4)
    # and the checkpoint is an ordinary one
    last = runs.runs / "sharded/checkpoints/last.ckpt"
    run_cli(*runs.words["one_prompt"][:-1], last, "--trainer.logger.version=loaded")
    same({"val/loss": sharded["val/loss"][-1:]}, scalars(runs.runs / "loaded"), "val/loss")
