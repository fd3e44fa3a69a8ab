"""Packed equals unpacked: the same losses for the same anchors, and planted leaks between documents are seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdraft.correctors import DCOCO
from specdraft.data.packing import pack
from specdraft.data.tokens import Examples, TokenisedRows, collate
from specdraft.drafters import DenseAttention, DFlash, FlexAttention, SplitAttention
from specdraft.drafters.block_layout import BlockLayout
from specdraft.module import DraftingModule
from specdraft.objectives import KLDivergence, Objective
from specdraft.targets import HFTarget, TargetConfig, load_target
from specdraft.types import DraftBatch

LENGTHS = [17, 9, 23, 12, 6, 14]
Slots = dict[tuple[int, int], Tensor]  # (document, position of the anchor) -> values of its block


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> HFTarget:
    return load_target(str(tiny_target), taps=[0, 2])


@pytest.fixture(scope="module")
def rows() -> TokenisedRows:
    generator = torch.Generator().manual_seed(3)
    out = TokenisedRows()
    for i, length in enumerate(LENGTHS):
        tokens = torch.randint(5, 60, (length,), generator=generator).tolist()
        # all are answers, so that a block or a label that runs over the end of a document finds something to count
        out.append(f"r{i}", "", tokens, [j >= (i % 3) for j in range(length)])
    return out


def build(target: HFTarget, attention: Any, **options: Any) -> DraftingModule:
    torch.manual_seed(0)
    made = DraftingModule(
        TargetConfig("tiny"),
        lambda spec: DFlash(spec, num_layers=2, block_size=4, attention=attention, **options),
        lambda spec: DCOCO(spec, candidates=4),
        Objective(prediction=KLDivergence(), num_anchors=64),
    )
    made.target = target
    made._build([])
    torch.nn.init.normal_(made.corrector.mlp_out.weight)  # type: ignore[union-attr, arg-type]
    return made.eval()


@torch.no_grad()  # flex_attention has no backward pass on the CPU
def per_slot(made: DraftingModule, batch: DraftBatch, documents: list[list[int]]) -> Slots:
    """Weights, probabilities of the labels and predictions of every block, by document and anchor position."""
    blocks = made.objective.blocks(batch, **made._shape(), generator=torch.Generator().manual_seed(0))
    out, hidden = made._corrected(made._with_features(batch), blocks)
    found: Slots = {}
    for row, here in enumerate(documents):
        for index, valid in enumerate(blocks.valid[row].tolist()):
            if not valid:
                continue
            anchor = int(blocks.anchors[row, index])
            number, position = (int(x[row, anchor]) for x in (batch.document_ids, batch.position_ids))
            # supervised slots only: what stands in the others is arbitrary
            kept = blocks.supervised[row, index]
            label = out.base.label_prob[row, index] * kept
            values = [out.base.weights[row, index], label, out.predicted_ids[row, index].float() * kept, kept.float()]
            found[here[number], position] = torch.cat([*values, hidden[row, index].flatten()]).detach()
    return found


def batches(rows: TokenisedRows) -> tuple[tuple[DraftBatch, list[list[int]]], tuple[DraftBatch, list[list[int]]]]:
    examples = Examples(rows)
    packs = pack(rows.lengths, 45, seed=1)
    assert max(len(one) for one in packs) > 2
    plain = collate([examples[i] for i in range(len(rows))])
    return (plain, [[i] for i in range(len(rows))]), (
        collate([examples[one] for one in packs]),
        [list(p) for p in packs],
    )


def compare(made: DraftingModule, rows: TokenisedRows) -> None:
    plain, packed = batches(rows)
    expected, found = per_slot(made, *plain), per_slot(made, *packed)
    assert found.keys() == expected.keys()
    assert len(found) > 50
    for key, values in expected.items():
        torch.testing.assert_close(found[key], values, rtol=1e-5, atol=1e-5, msg=str(key))


@pytest.mark.parametrize("attention", [SplitAttention(), SplitAttention(chunk=200), DenseAttention(), FlexAttention()])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 5, "causal": True}, {"sample_from_anchor": True}])
def test_packed_rows_give_the_losses_of_unpacked_ones(
    target: HFTarget, rows: TokenisedRows, attention: Any, options: dict[str, Any]
) -> None:
    compare(build(target, attention, **options), rows)


def test_gradients_are_the_same(target: HFTarget, rows: TokenisedRows) -> None:
    gradients = []
    for batch, _ in batches(rows):
        made = build(target, SplitAttention()).train()
        blocks = made.objective.blocks(batch, **made._shape(), generator=torch.Generator().manual_seed(0))
        made._corrected(made._with_features(batch), blocks)[0].loss.backward()
        gradients.append({name: p.grad for name, p in made.named_parameters()})
    for name, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], value, rtol=1e-4, atol=1e-5, msg=name)


def leak_in_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks see everything before their anchor, whatever document it is from."""

    def context_mask(self: BlockLayout) -> Tensor:
        index = torch.arange(self.document_ids.shape[1])
        return (index < self.anchors[..., None])[:, :, None]

    monkeypatch.setattr(BlockLayout, "context_mask", context_mask)


def leak_in_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target reads a packed row as one conversation."""
    features = HFTarget.features
    monkeypatch.setattr(
        HFTarget, "features", lambda self, ids, positions, documents, **how: features(self, ids, positions, None, **how)
    )


def leak_in_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks run on into the next document."""
    blocks = Objective.blocks

    def one_document(self: Objective, batch: DraftBatch, **how: Any) -> Any:
        documents, batch.document_ids = batch.document_ids, batch.document_ids.clamp(max=0)
        try:
            return blocks(self, batch, **how)
        finally:
            batch.document_ids = documents

    monkeypatch.setattr(Objective, "blocks", one_document)


def leak_in_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions count on through the row."""
    monkeypatch.setattr(
        "specdraft.data.tokens._positions",
        lambda documents: torch.arange(documents.shape[1]).expand_as(documents).contiguous(),
    )


@pytest.mark.parametrize("plant", [leak_in_attention, leak_in_features, leak_in_labels, leak_in_positions])
def test_a_planted_leak_is_seen(
    target: HFTarget, rows: TokenisedRows, monkeypatch: pytest.MonkeyPatch, plant: Any
) -> None:
    made = build(target, SplitAttention())
    compare(made, rows)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        compare(made, rows)


def test_a_packed_run_trains_from_cached_features(
    run_cli: Callable[..., None], tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("SPECDRAFT_CACHE", str(tmp_path / "cache"))
    losses = []
    for features in ("OnlineFeatures", "CachedFeatures"):
        run_cli(
            *("fit", "--config", tiny_config, f"--data.init_args.features={features}", "--trainer.max_steps=3"),
            *("--data.init_args.batching=Packed", "--data.init_args.batching.tokens_per_batch=128"),
            *("--model.objective.init_args.anchor_budget=9", f"--trainer.logger.version={features}"),
        )
        events = EventAccumulator(str(tmp_path / "runs/tiny" / features))
        events.Reload()
        losses.append([event.value for event in events.Scalars("train/loss")])
        assert max(event.value for event in events.Scalars("train/supervised_slots")) <= 9 * 3
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)  # bf16 on disk
