"""The format of speculators, which vLLM loads: DFlash, DFlash 2, DSpark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from specdraft.checkpoints.dspark import anchors, markov_fields, read_markov
from specdraft.checkpoints.fields import (
    Config,
    check_backbone,
    convolutions,
    integer,
    layer_fields,
    layer_ids,
    mask_token,
    read_layers,
    required,
    slots,
    target_facts,
)
from specdraft.checkpoints.folding import (
    CONVOLUTION_GROUP,
    convolution_fields,
    identities,
    wants_identities,
    without_identities,
)
from specdraft.checkpoints.formats import Format, FrozenRows
from specdraft.checkpoints.heads import MARKOV, NONE, SELECTOR, take
from specdraft.checkpoints.record import CorrectorPart, DFlashOptions, DraftCheckpoint, Tensors, corrector_part
from specdraft.checkpoints.zlab import selector_refusals

# algorithm, architecture, class of the config
KINDS = {
    "NoCorrector": ("dflash", "DFlashDraftModel", "DFlashSpeculatorConfig"),
    "MarkovCorrector": ("dspark", "DSparkDraftModel", "DSparkSpeculatorConfig"),
    "SelectorCorrector": ("dflash2", "DFlash2DraftModel", "DFlash2SpeculatorConfig"),
}
VERSION = "0.5.0"  # of the library whose fields these are


class Speculators(Format):
    """``speculators_model_type``; taps are HF indices (ours + 1), the layers lie in ``transformer_layer_config``.

    A reduced draft vocabulary is ``d2t`` ``[D]`` int64, what to add to a row to get its target id, and ``t2d``
    ``[V]`` bool, with the reduced head. DFlash 2 always has convolutions there: a drafter without them gets the
    identity.
    """

    name = "speculators"
    origin = "speculators, vLLM"
    heads: ClassVar[dict[str, dict[str, str]]] = {
        "NoCorrector": NONE,
        "MarkovCorrector": MARKOV,
        "SelectorCorrector": SELECTOR,
    }
    elsewhere: ClassVar[dict[str, str]] = {
        "DCOCO": "export with --format dcoco",
        "DominoCorrector": "export with --format zlab",
    }
    sizes_vocabulary = True
    convolutions = True

    @override
    def recognises(self, folder: Path, config: Mapping[str, Any]) -> bool:
        return "speculators_model_type" in config or "speculators_config" in config

    @override
    def needs_rows(self, checkpoint: DraftCheckpoint) -> bool:
        return checkpoint.draft_token_ids is not None

    @override
    def own_refusals(self, checkpoint: DraftCheckpoint) -> list[str]:
        options, target, corrector = checkpoint.drafter, checkpoint.target, checkpoint.corrector
        out = selector_refusals(corrector)
        if corrector.name == "SelectorCorrector":
            if checkpoint.draft_token_ids is not None:
                out.append("draft_vocab_size with a selector: its codebooks have a row per token of the target")
            if not options.conv_kernel_size and not wants_identities(checkpoint):
                out.append(
                    f"DFlash 2 has convolutions there, whose {CONVOLUTION_GROUP} channels per group must divide the "
                    f"width {target.hidden_size}"
                )
        elif options.conv_kernel_size:
            out.append(f"conv_kernel_size, {corrector.name}: only DFlash 2, with a selector, has convolutions there")
        if corrector.facts.get("kind") == "rnn" and not options.sample_from_anchor:
            out.append("an rnn Markov head with sample_from_anchor: false: its state would start one slot earlier")
        if options.causal and options.sliding_window is None:
            out.append("causal: its full attention always sees the whole block; add a sliding_window")
        if target.name is None:
            out.append("the target's name: the format stores it; give it with --target")
        if any(value not in (None, 1.0) for value in target.scales.values()):
            out.append(f"target scaling {target.scales}: the format does not state it")
        return out

    @override
    def cautions(self, checkpoint: DraftCheckpoint) -> list[str]:
        out = []
        if checkpoint.drafter.sample_from_anchor and checkpoint.corrector.name != "MarkovCorrector":
            out.append("vLLM reads sample_from_anchor: true of a DFlash drafter in recent versions only")
        if checkpoint.corrector.name == "SelectorCorrector":
            out.append(
                "vLLM and SGLang read DFlash 2 from z-lab's fields, not from these; serve an export of --format zlab"
            )
        if checkpoint.corrector.facts.get("kind") in ("gated", "rnn"):
            out.append("vLLM has DSpark's vanilla Markov head only; SGLang has all three, in --format deepspec")
        return out

    @override
    def config(self, checkpoint: DraftCheckpoint) -> Config:
        options, target, corrector = checkpoint.drafter, checkpoint.target, checkpoint.corrector
        kind, architecture, config_class = KINDS[corrector.name]
        drafts = options.block_size - (0 if options.sample_from_anchor else 1)
        rows = target.vocab_size if checkpoint.draft_token_ids is None else len(checkpoint.draft_token_ids)
        proposal = {
            "proposal_type": "greedy",
            "speculative_tokens": drafts,
            "verifier_accept_k": 1,
            "accept_tolerance": 0.0,
        }
        fields: Config = {
            "speculators_model_type": kind,
            "speculators_version": VERSION,
            "architectures": [architecture],
            "auto_map": {"": f"config.{config_class}"},
            "transformer_layer_config": layer_fields(checkpoint),
            "aux_hidden_state_layer_ids": [tap + 1 for tap in target.taps],
            "block_size": options.block_size,
            "mask_token_id": target.mask_token_id,
            "sample_from_anchor": options.sample_from_anchor,
            # vLLM takes it for all layers, full ones too, and false as causal
            "sliding_window_non_causal": not options.causal,
            "draft_vocab_size": rows,
            "target_hidden_size": None,
            "max_anchors": anchors(checkpoint),
            "tie_word_embeddings": False,
            "dtype": str(checkpoint.dtype).removeprefix("torch."),
            "speculators_config": {
                "algorithm": kind,
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {
                    "name_or_path": target.name,
                    "architectures": [target.architecture] if target.architecture else [],
                },
            },
        }
        if corrector.name == "MarkovCorrector":
            fields |= markov_fields(corrector)
        if corrector.name == "SelectorCorrector":
            fields |= {"selector_rank": corrector.facts["rank"], "selector_top_k": corrector.candidates}
            fields |= convolution_fields(checkpoint)
        return fields

    @override
    def head_tensors(self, checkpoint: DraftCheckpoint, rows: FrozenRows | None) -> Tensors:
        target, ids = checkpoint.target, checkpoint.draft_token_ids
        out = {**super().head_tensors(checkpoint, rows), **identities(checkpoint)}
        if ids is not None:
            assert rows is not None
            kept = torch.zeros(target.vocab_size, dtype=torch.bool)
            kept[ids] = True
            out |= {"t2d": kept, "d2t": ids - torch.arange(len(ids)), "lm_head.weight": rows.head[ids]}
        return out

    @override
    def parse(self, config: Mapping[str, Any], tensors: Tensors, where: str) -> DraftCheckpoint:
        layer_config = required(config, "transformer_layer_config", where, '"transformer_layer_config": {...}')
        inner = f"{where}, transformer_layer_config"
        layers = read_layers(layer_config, inner)
        if config.get("target_hidden_size") not in (None, layer_config["hidden_size"]):
            raise ValueError(f"{where}: target_hidden_size differs from the drafter's width; specdraft's are equal")
        ids, tensors = _vocabulary(config, tensors, layer_config["vocab_size"], where)
        tensors, trained = without_identities(config, tensors, where)
        corrector, tensors, notes = _head(config, tensors, where, trained)
        sliding = layers["sliding_window"] is not None
        options = DFlashOptions(
            **layers,
            block_size=integer(config, "block_size", where),
            sample_from_anchor=slots(config, where),
            causal=sliding and not config.get("sliding_window_non_causal", False),
            **convolutions(config, where, trained),
        )
        taps = layer_ids(config, "aux_hidden_state_layer_ids", where, 1, None)
        mask = mask_token(config, where, layer_config["vocab_size"])
        verifier = (config.get("speculators_config") or {}).get("verifier") or {}
        target = target_facts(layer_config, taps, mask, None, verifier.get("name_or_path"))
        target = replace(target, architecture=next(iter(verifier.get("architectures") or ()), ""))
        weights = check_backbone(tensors, options, target, where)
        return DraftCheckpoint(self.name, target, options, weights, corrector, ids, notes=notes)


def _vocabulary(config: Mapping[str, Any], tensors: Tensors, vocab: int, where: str) -> tuple[Tensor | None, Tensors]:
    rest = {name: tensor for name, tensor in tensors.items() if name not in ("t2d", "d2t")}
    size = integer(config, "draft_vocab_size", where)
    if size == vocab:
        return None, rest
    if "t2d" not in tensors or "d2t" not in tensors:
        raise ValueError(
            f"{where}: draft_vocab_size {size} of {vocab} needs the tensors t2d and d2t, which are missing"
        )
    ids = tensors["t2d"].bool().nonzero()[:, 0]
    if len(ids) != size or not torch.equal(tensors["d2t"].to(torch.int64), ids - torch.arange(len(ids))):
        raise ValueError(f"{where}: t2d, d2t and draft_vocab_size {size} disagree about the draft vocabulary")
    return ids, rest


def _head(
    config: Mapping[str, Any], tensors: Tensors, where: str, convolved: bool
) -> tuple[CorrectorPart, Tensors, tuple[str, ...]]:
    kind = required(
        config, "speculators_model_type", where, '"speculators_model_type": "dflash", "dspark" or "dflash2"'
    )
    if config.get("projector_type", "dflash") != "dflash":
        raise ValueError(f"{where}: projector_type {config['projector_type']!r} is not read from this format")
    if kind == "dspark":
        return read_markov(config, tensors, where)
    if kind == "dflash2":
        mine, rest = take(tensors, SELECTOR)
        facts = {"rank": integer(config, "selector_rank", where), "codebooks": True}
        part = corrector_part("SelectorCorrector", facts, mine, integer(config, "selector_top_k", where, 2))
        return part, rest, () if convolved else ("the convolutions are the identity and left out",)
    if kind != "dflash":
        raise ValueError(
            f"{where}: speculators_model_type {kind!r} is unknown; specdraft reads dflash, dspark, dflash2"
        )
    return CorrectorPart(), tensors, ()
