"""Comparison of runs from their logs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from specdraft.compare import compare, figure, intervals, reference_run, table
from specdraft.runs import differences, read_runs

CONFIG = """
trainer:
  callbacks:
    - class_path: specdraft.callbacks.SpeculativeDecoding
      init_args: {{num_prompts: 16, max_new_tokens: 64, temperature: {temperature}, concurrency: 1}}
model:
  target: {{path: some-target}}
data:
  init_args: {{train: chats, val: null}}
"""


def write_run(folder: Path, mats: list[float], temperature: float = 0.0) -> None:
    with SummaryWriter(str(folder)) as writer:
        for step, mat in enumerate(mats):
            writer.add_scalar("decode/mat", mat, step)
            writer.add_scalar("decode/speedup", mat / 2, step)
            writer.add_scalar("decode/accept_at/1", mat / 4, step)
    (folder / "config.yaml").write_text(CONFIG.format(temperature=temperature))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "none" / "version_0", [1.0, 1.5, 1.25])
    write_run(tmp_path / "dcoco" / "version_0", [1.0, 2.0])
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(("at", "expected"), [("best", (2.0, 1.5)), ("last", (2.0, 1.25))])
def test_values_are_those_of_one_step(runs: Path, at: str, expected: tuple[float, ...]) -> None:
    found = read_runs([str(runs)], at)
    assert [run.name for run in found] == ["dcoco/version_0", "none/version_0"]
    assert tuple(run.values["decode/mat"] for run in found) == expected
    assert all(run.values["decode/speedup"] == run.values["decode/mat"] / 2 for run in found)


def test_formats_hold_the_logged_numbers(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_runs([str(runs)])
    rows = list(csv.DictReader(table(found, "csv").splitlines()))
    assert [float(row["MAT"]) for row in rows] == [2.0, 1.5]
    assert [float(row["a_1"]) for row in rows] == [0.5, 0.375]
    assert [row["val MAT"] for row in rows] == ["", ""]
    assert [run["decode/mat"] for run in json.loads(table(found, "json"))] == [2.0, 1.5]
    compare(str(runs), plot=str(runs / "compare.png"))
    assert "NOT comparable" not in capsys.readouterr().out
    assert (runs / "compare.png").stat().st_size > 5000


def test_runs_measured_otherwise_are_told_apart(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(runs / "hot" / "version_0", [3.0], temperature=1.0)
    assert differences(read_runs([str(runs)])) == [
        "temperature: 0.0 in dcoco/version_0, none/version_0; 1.0 in hot/version_0"
    ]
    compare(str(runs))
    assert "NOT comparable" in capsys.readouterr().out


def test_another_target_is_told_apart_and_so_is_silence(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs / "none" / "version_0" / "config.yaml"
    path.write_text(path.read_text().replace("some-target", "other-target"))
    assert differences(read_runs([str(runs)])) == [
        'target: "some-target" in dcoco/version_0; "other-target" in none/version_0'
    ]
    path.unlink()
    (line,) = differences(read_runs([str(runs)]))
    assert line.startswith("config.yaml: missing in none/version_0;")
    compare(str(runs))
    assert "NOT comparable" in capsys.readouterr().out
    assert not differences(read_runs([str(runs / "none")]))


def test_decoding_under_another_name_is_not_compared(runs: Path) -> None:
    path = runs / "none" / "version_0" / "config.yaml"
    second = "    - class_path: SpeculativeDecoding\n      init_args: {name: sampled, temperature: 1.0}\nmodel:"
    path.write_text(path.read_text().replace("model:", second))
    assert not differences(read_runs([str(runs)]))


def test_figure_shows_the_numbers_and_says_what_differs(runs: Path) -> None:
    write_counts(runs / "none" / "version_0", 1, [0, 5, 10, 20])
    write_run(runs / "hot" / "version_0", [3.0], temperature=1.0)
    found = read_runs([str(runs)])
    gains = [intervals(run, found[0]) for run in found]
    drawn = figure(found, gains)
    left, right = drawn.axes
    assert [bar.get_width() for bar in left.patches] == [2.0, 3.0, 1.5]
    assert [text.get_text().strip() for text in right.texts] == ["1.00", "1.50", "0.75"]
    (whisker,) = left.lines  # one run kept its prompts
    assert tuple(whisker.get_xdata()) == gains[2]["MAT 95 %"]
    assert drawn.get_suptitle() == "not comparable in every respect: decoded prompts, temperature"
    assert figure(found[:1]).get_suptitle() == ""


def test_missing_folders_and_runs_are_named(runs: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder .*gone"):
        read_runs([str(runs / "gone")])
    with pytest.raises(FileNotFoundError, match="no run with decode/mat"):
        read_runs([str(runs / "empty")])


def write_counts(folder: Path, step: int, accepted: list[int], seconds: float = 1.0, prompts: str = "p") -> None:
    (folder / "decoded").mkdir(exist_ok=True)
    lines = ["prompt,family,rounds,accepted,tokens,seconds,ar_tokens,ar_seconds"]
    for i, count in enumerate(accepted):
        lines.append(f"{prompts}{i},chat,10,{count},{10 + count},{seconds},{10 + count},2.0")
    (folder / "decoded" / f"val-{step}.csv").write_text("\n".join(lines) + "\n")


def test_gain_over_the_run_without_a_corrector(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every prompt gains 0.5 tokens per round: however prompts differ, so does every pair."""
    write_counts(runs / "none" / "version_0", 1, [0, 5, 10, 20])
    write_counts(runs / "dcoco" / "version_0", 1, [5, 10, 15, 25], seconds=0.5)
    found = read_runs([str(runs)])
    base = reference_run(found, None)
    assert base.name == "none/version_0"
    gain = intervals(found[0], base)
    assert gain["MAT - ref"] == pytest.approx(0.5)
    assert gain["MAT - ref 95 %"] == pytest.approx((0.5, 0.5))
    low, high = gain["MAT 95 %"]  # type: ignore[misc]
    assert 1.5 <= low < 2.375 < high <= 3.5
    assert gain["x ref"] == pytest.approx(2.0)
    assert "MAT - ref" not in intervals(base, base)
    compare(str(runs))
    printed = capsys.readouterr().out
    assert "ref is none/version_0" in printed
    assert "0.500..0.500" in printed
    compare(str(runs), format="json", reference="dcoco")
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["none/version_0"]["intervals"]["MAT - ref"] == pytest.approx(-0.5)


def test_runs_on_other_prompts_have_no_gain(runs: Path) -> None:
    write_counts(runs / "none" / "version_0", 1, [0, 5, 10], prompts="other")
    write_counts(runs / "dcoco" / "version_0", 1, [5, 10, 15])
    found = read_runs([str(runs)])
    assert set(intervals(found[0], found[1])) == {"MAT 95 %", "speed-up 95 %"}


def test_other_prompts_under_one_name_are_told_apart(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, prompts in (("none", "other"), ("dcoco", "p")):
        write_counts(runs / name / "version_0", 1, [0, 5, 10], prompts=prompts)
    (line,) = differences(read_runs([str(runs)]))
    assert line.startswith("decoded prompts: ")
    assert line.count('"3 (') == 2
    for format in ("csv", "json"):  # what a program reads stays clean
        compare(str(runs), format=format)  # type: ignore[arg-type]
        printed = capsys.readouterr()
        assert "NOT comparable" not in printed.out
        assert "NOT comparable" in printed.err
        assert "decoded prompts" in printed.err


def test_a_test_run_is_told_apart_from_validation(runs: Path) -> None:
    for name in ("none", "dcoco"):
        write_counts(runs / name / "version_0", 1, [0, 5, 10])
    assert not differences(read_runs([str(runs)]))
    folder = runs / "none" / "version_0"
    (folder / "decoded/val-1.csv").rename(folder / "decoded/test-1.csv")
    (folder / "decoded/at8-test-1.csv").write_text((folder / "decoded/test-1.csv").read_text())  # a second callback's
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("train: chats", "train: chats, test: exam"))
    found = {run.folder.parent.name: run for run in read_runs([str(runs)])}
    assert len(found["none"].counts) == 3
    assert differences(list(found.values())) == ['held-out data: "chats" in dcoco/version_0; "exam" in none/version_0']


def test_what_some_runs_do_not_tell_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_counts(runs / "none" / "version_0", 1, [0, 5, 10])
    assert differences(read_runs([str(runs)])) == ["decoded prompts: not known of dcoco/version_0"]
    compare(str(runs))
    printed = capsys.readouterr().out
    assert "measured with target some-target, held-out data chats, num_prompts 16" in printed
    assert "decoded prompts" in printed.split("NOT comparable")[1]


def test_other_types_are_told_apart(runs: Path) -> None:
    path = runs / "none" / "version_0" / "config.yaml"
    path.write_text(path.read_text().replace("path: some-target", "path: some-target, dtype: bfloat16"))
    assert differences(read_runs([str(runs)])) == [
        'target dtype: null in dcoco/version_0; "bfloat16" in none/version_0'
    ]


def test_a_measured_checkpoint_shows_the_steps_of_its_training(runs: Path) -> None:
    write_run(runs / "again" / "version_0", [1.5])  # `validate` logs at step 0
    facts = {"measured": {"path": "runs/x/checkpoints/best.ckpt", "step": 400}}
    (runs / "again" / "version_0" / "provenance.json").write_text(json.dumps(facts))
    assert [run.step for run in read_runs([str(runs / "again")])] == [400]


def test_callbacks_may_be_one(runs: Path) -> None:
    path = runs / "none" / "version_0" / "config.yaml"
    path.write_text(
        path.read_text()
        .replace("    - class_path", "      class_path")
        .replace("      init_args: {n", "      init_args: {n")
    )
    assert not differences(read_runs([str(runs)]))


def test_other_processors_are_told_apart(runs: Path) -> None:
    for name, cpu in (("none", "A"), ("dcoco", "B")):
        facts = {"machine": "x86_64", "cpu": cpu, "threads": 2, "devices": []}
        (runs / name / "version_0" / "provenance.json").write_text(json.dumps(facts))
    assert differences(read_runs([str(runs)])) == ['cpu: "B" in dcoco/version_0; "A" in none/version_0']


def test_other_libraries_and_measured_rows_are_told_apart(runs: Path) -> None:
    for name, torch, anchors in (("none", "2.11", 64), ("dcoco", "2.13", 32)):
        folder = runs / name / "version_0"
        (folder / "provenance.json").write_text(json.dumps({"versions": {"torch": torch, "transformers": "5.24"}}))
        text = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(text.replace("model:\n", f"model:\n  val_anchors: {anchors}\n"))
    assert differences(read_runs([str(runs)])) == [
        'torch: "2.13" in dcoco/version_0; "2.11" in none/version_0',
        "val_anchors: 32 in dcoco/version_0; 64 in none/version_0",
    ]


@pytest.mark.parametrize("name", ["provenance.json", "decoded/val-1.csv"])
def test_damaged_files_are_named(runs: Path, name: str) -> None:
    path = runs / "none" / "version_0" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("prompt,family,rounds,accepted,tokens,seconds,ar_tokens,ar_seconds\nab,a,3,1,")
    with pytest.raises(ValueError, match=f"{name}.*is damaged"):
        read_runs([str(runs)])


def test_runs_without_counts_show_what_they_logged(runs: Path) -> None:
    found = read_runs([str(runs)])
    assert intervals(found[0], found[1]) == {}
    assert "ref" not in table(found)


def test_names_tell_runs_of_two_seeds_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in ("seed0", "seed1"):
        write_run(tmp_path / seed / "none" / "version_0", [1.0])
        write_run(tmp_path / seed / "dcoco" / "version_0", [2.0])
    folders = [str(tmp_path / seed) for seed in ("seed0", "seed1")]
    names = [f"{seed}/{kind}/version_0" for seed in ("seed0", "seed1") for kind in ("dcoco", "none")]
    assert [run.name for run in read_runs(folders)] == names
    compare(folders, format="csv", reference="seed1/none")
    rows = csv.DictReader(capsys.readouterr().out.splitlines())
    assert [row["run"] for row in rows] == names
    assert [run.name for run in read_runs(folders[:1])] == ["dcoco/version_0", "none/version_0"]


def test_the_reference_is_the_run_configured_without_a_corrector(tmp_path: Path) -> None:
    """Not one whose name happens to hold the word."""
    correctors = {"a_nonempty": "specdraft.correctors.DCOCO", "plain": "specdraft.correctors.NoCorrector", "z": ""}
    for name, corrector in correctors.items():
        write_run(tmp_path / name / "v", [1.0])
        text = (tmp_path / name / "v" / "config.yaml").read_text()
        line = f"model:\n  corrector: {{class_path: {corrector}}}" if corrector else "model:\n  corrector: null"
        (tmp_path / name / "v" / "config.yaml").write_text(text.replace("model:", line))
    found = read_runs([str(tmp_path)])
    assert reference_run(found, None).name == "plain/v"
    assert reference_run([found[0], found[2]], None).name == "a_nonempty/v"
    assert reference_run([found[2]], None).name == "z/v"


@pytest.mark.parametrize("name", ["gone", "version"])
def test_reference_must_be_one_run(runs: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"reference '{name}' is part of"):
        compare(str(runs), reference=name)


def test_parameters_are_whole_numbers(runs: Path) -> None:
    with SummaryWriter(str(runs / "sized" / "version_0")) as writer:
        writer.add_scalar("decode/mat", 1.0, 0)
        writer.add_scalar("decode/corrector_parameters", 1443073.0, 0)
    rows = list(csv.DictReader(table(read_runs([str(runs)]), "csv").splitlines()))
    assert [row["corrector parameters"] for row in rows] == ["", "", "1443073"]
