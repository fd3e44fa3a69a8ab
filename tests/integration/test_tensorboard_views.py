"""What TensorBoard gets of a run, read back from the event file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata

from specdraft.callbacks import ScalarLayout
from specdraft.callbacks.figures import accepted_lengths_figure, round_latency_figure
from specdraft.callbacks.hparams import METRICS, part_name
from specdraft.callbacks.scalar_layout import CHARTS
from specdraft.correctors import MarkovCorrector
from specdraft.objectives import (
    CrossEntropy,
    FirstError,
    IntraBlockUnmasking,
    LKHybrid,
    MixedHorizon,
    TotalVariation,
    WeightedSum,
)
from specdraft.types import TargetSpec

ROOT = Path(__file__).parents[2]
Run = Callable[..., None]


@pytest.fixture
def events(run_cli: Run, tiny_config: Path, tmp_path: Path) -> EventAccumulator:
    overlay = ROOT / "experiments/ablations/dscout_4_acceptance_weighted.yaml"
    views = "    - class_path: HParams\n      init_args: {extra: {idea: none}}\n    - class_path: ScalarLayout\n"
    text = tiny_config.read_text()
    tiny_config.write_text(text.replace("    - class_path: Provenance\n", views + "    - class_path: Provenance\n"))
    run_cli("fit", "--config", tiny_config, "--config", overlay, "--model.corrector=DCOCO")
    found = EventAccumulator(str(tmp_path / "runs/dscout_4_acceptance_weighted/v"), size_guidance={"images": 0})
    found.Reload()
    return found


def test_a_run_as_tensorboard_sees_it(events: EventAccumulator) -> None:
    tags = events.Tags()
    # HParams: columns by part, metrics that were logged under these very names and not before they were measured
    plugin = events.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(plugin[metadata.SESSION_START_INFO_TAG]).hparams
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.items()}
    assert values["drafter"] == "DFlash"
    assert values["corrector"] == "DCOCO"
    assert values["inclusion"] == "IntraBlockUnmasking(MixedHorizon(FixedHorizon))"
    assert values["weighting"] == "AcceptanceWeighted"
    assert values["prediction"] == "CrossEntropy"
    assert values["target"].startswith("tiny-target")
    assert (values["block_size"], values["lr"], values["seed"], values["max_steps"]) == (4, 0.01, 1, 6)
    assert values["idea"] == "none"
    experiment = metadata.parse_experiment_plugin_data(plugin[metadata.EXPERIMENT_TAG])
    assert tuple(info.name.tag for info in experiment.metric_infos) == METRICS
    for name in METRICS:
        assert len(events.Scalars(name)) == 2
    # custom scalars: every chart has something to show
    content = events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    layout = layout_pb2.Layout.FromString(content)
    assert [category.title for category in layout.category] == list(CHARTS)
    for category in layout.category:
        for chart in category.chart:
            for tag in chart.multiline.tag:
                if chart.title != "learning rate":  # its monitor is not in the tiny run
                    assert any(re.match(tag, each) for each in tags["scalars"]), tag
    # figures and text of both validations
    assert set(tags["images"]) == {"decode/acceptance", "decode/accepted_lengths", "decode/round_latency"}
    assert all(len(events.Images(tag)) == 2 for tag in tags["images"])
    sample = events.Tensors("decode/sample/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert sample.count("#### ") == 2  # an answer of either family
    assert "> add " in sample
    assert "> take " in sample


def test_charts_do_not_mix_tags_that_begin_alike() -> None:
    (tag,) = CHARTS["MAT"]["decoded (decode/mat)"]
    assert re.match(tag, "decode/mat")
    assert not re.match(tag, "decode/mat_drafts")
    assert ScalarLayout().charts is CHARTS


def test_names_of_parts_hold_the_parts_inside() -> None:
    assert part_name(IntraBlockUnmasking(inner=MixedHorizon())) == "IntraBlockUnmasking(MixedHorizon(FixedHorizon))"
    assert part_name(FirstError()) == "FirstError(Uniform)"
    assert part_name(WeightedSum([CrossEntropy(), TotalVariation()], [1, 1])) == (
        "WeightedSum(CrossEntropy, TotalVariation)"
    )
    assert part_name(LKHybrid()) == "LKHybrid"
    assert part_name(MarkovCorrector(TargetSpec("t", 8, 9, 2, draft_vocab_size=9), "gated", rank=2)) == (
        "MarkovCorrector(gated)"
    )


def test_figures_hold_the_numbers() -> None:
    pytest.importorskip("matplotlib")
    lengths = accepted_lengths_figure([0.5, 0.25, 0.25], 1.75)
    assert lengths is not None
    (axes,) = lengths.axes
    assert [bar.get_height() for bar in axes.patches] == [0.5, 0.25, 0.25]
    assert axes.lines[0].get_xdata()[0] == 0.75
    latency = round_latency_figure({"draft": 2.0, "correct": 1.0, "verify": 5.0, "host": 0.5}, 1.2)
    assert latency is not None
    bars = latency.axes[0].patches
    assert [bar.get_width() for bar in bars[:4]] == [2.0, 1.0, 5.0, 0.5]
    assert [bar.get_x() for bar in bars[:4]] == [0.0, 2.0, 3.0, 8.0]
    assert bars[4].get_width() == pytest.approx(8.5 * 1.2)
