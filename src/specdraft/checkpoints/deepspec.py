"""DeepSpec's format: DSpark, and DFlash as DSpark of rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from specdraft.checkpoints.dspark import anchors, markov_fields, read_markov
from specdraft.checkpoints.fields import (
    Config,
    check_backbone,
    integer,
    layer_fields,
    layer_ids,
    mask_token,
    read_layers,
    slots,
    target_facts,
)
from specdraft.checkpoints.formats import Format, FrozenRows
from specdraft.checkpoints.heads import MARKOV, NONE
from specdraft.checkpoints.record import DFlashOptions, DraftCheckpoint, Tensors


class DeepSpec(Format):
    """``Qwen3DSparkModel``: fields at the top level, taps numbered as here, slot i predicts ``p + 1 + i``.

    The class repeats the target's embedding and head. DeepSpec itself writes no ``sample_from_anchor``, and other
    projects' files of this class mean either convention, so that the field must be there to be read.
    """

    name = "deepspec"
    origin = "DeepSpec, SGLang"
    heads: ClassVar[dict[str, dict[str, str]]] = {"NoCorrector": NONE, "MarkovCorrector": MARKOV}
    elsewhere: ClassVar[dict[str, str]] = {
        "DCOCO": "export with --format dcoco",
        "DominoCorrector": "export with --format zlab",
        "SelectorCorrector": "export with --format zlab or --format speculators",
    }

    @override
    def recognises(self, folder: Path, config: Mapping[str, Any]) -> bool:
        return "markov_rank" in config and "transformer_layer_config" not in config

    @override
    def needs_rows(self, checkpoint: DraftCheckpoint) -> bool:
        return True

    @override
    def cautions(self, checkpoint: DraftCheckpoint) -> list[str]:
        if checkpoint.corrector.name == "MarkovCorrector":
            return []
        return ["without a Markov head (markov_rank 0) DeepSpec loads it, SGLang refuses it"]

    @override
    def own_refusals(self, checkpoint: DraftCheckpoint) -> list[str]:
        options, target, out = checkpoint.drafter, checkpoint.target, []
        if not options.sample_from_anchor:
            out.append(
                "sample_from_anchor: false: its slots predict p+1+i; train with sample_from_anchor: true, "
                "or export with --format zlab"
            )
        if options.causal or options.sliding_window is not None:
            out.append("causal / sliding_window: its layers see the whole context and the whole block")
        if target.name is None:
            out.append("the target's name: the format repeats its matrices; give it with --target")
        if list(target.taps) != sorted(target.taps):
            out.append(f"taps {list(target.taps)}: it wants them in increasing order")
        if any(value not in (None, 1.0) for value in target.scales.values()):
            out.append(f"target scaling {target.scales}: its Qwen3 class scales neither embedding nor logits")
        return out

    @override
    def config(self, checkpoint: DraftCheckpoint) -> Config:
        target = checkpoint.target
        fields: Config = {
            **layer_fields(checkpoint),
            "architectures": ["Qwen3DSparkModel"],
            "block_size": checkpoint.drafter.block_size,
            "sample_from_anchor": True,
            "mask_token_id": target.mask_token_id,
            "target_layer_ids": list(target.taps),
            "num_anchors": anchors(checkpoint),
            **markov_fields(checkpoint.corrector),
        }
        if target.num_layers is not None:
            fields["num_target_layers"] = target.num_layers
        return fields

    @override
    def head_tensors(self, checkpoint: DraftCheckpoint, rows: FrozenRows | None) -> Tensors:
        assert rows is not None
        dtype = checkpoint.dtype
        frozen = {"embed_tokens.weight": rows.embedding.to(dtype), "lm_head.weight": rows.head.to(dtype)}
        return {**frozen, **super().head_tensors(checkpoint, rows)}

    @override
    def parse(self, config: Mapping[str, Any], tensors: Tensors, where: str) -> DraftCheckpoint:
        layers = read_layers(config, where)
        count = config.get("num_target_layers")
        corrector, rest, notes = read_markov(config, tensors, where)
        options = DFlashOptions(
            **layers, block_size=integer(config, "block_size", where), sample_from_anchor=slots(config, where)
        )
        taps = layer_ids(config, "target_layer_ids", where, 0, count)
        target = target_facts(config, taps, mask_token(config, where, config["vocab_size"]), count)
        weights = check_backbone(rest, options, target, where)
        return DraftCheckpoint(self.name, target, options, weights, corrector, notes=notes)
