"""The format of z-lab's drafters, which SGLang and vLLM load: DFlash, DFlash 2, Domino."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from specdraft.checkpoints.fields import (
    Config,
    agreed,
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
from specdraft.checkpoints.folding import convolution_fields, identities, without_identities
from specdraft.checkpoints.formats import Format, FrozenRows
from specdraft.checkpoints.heads import DOMINO, NONE, SELECTOR, take
from specdraft.checkpoints.record import CorrectorPart, DFlashOptions, DraftCheckpoint, Tensors, corrector_part

SCALES = {
    "embedding": "input_embedding_scale",
    "multiplier": "output_multiplier",
    "softcap": "final_logit_softcapping",
}


class ZLab(Format):
    """``config.json`` with a ``dflash_config``; taps are numbered as here (output of layer ``i``).

    The slot convention is ``dflash_config.sample_from_anchor``, for Domino ``shift_label``. Published DFlash drafters
    leave it out; it has to be added to their ``config.json`` once, as the error says. Convolutions of DFlash 2 that are
    the identity are left out in reading.
    """

    name = "zlab"
    convolutions = True
    origin = "z-lab, SGLang, vLLM"
    heads: ClassVar[dict[str, dict[str, str]]] = {
        "NoCorrector": NONE,
        "DominoCorrector": DOMINO,
        "SelectorCorrector": SELECTOR,
    }
    elsewhere: ClassVar[dict[str, str]] = {
        "MarkovCorrector": "export with --format deepspec or --format speculators",
        "DCOCO": "export with --format dcoco, whose DFlash part is of this format",
    }

    @override
    def recognises(self, folder: Path, config: Mapping[str, Any]) -> bool:
        return "dflash_config" in config

    @override
    def own_refusals(self, checkpoint: DraftCheckpoint) -> list[str]:
        out = selector_refusals(checkpoint.corrector)
        if checkpoint.corrector.name == "DominoCorrector" and checkpoint.drafter.block_size < 2:
            out.append(f"block_size {checkpoint.drafter.block_size}: Domino's loaders need at least 2")
        if checkpoint.corrector.name == "DominoCorrector" and checkpoint.drafter.conv_kernel_size:
            out.append("conv_kernel_size: Domino's loaders have no convolutions")
        return out

    @override
    def cautions(self, checkpoint: DraftCheckpoint) -> list[str]:
        options, corrector, out = checkpoint.drafter, checkpoint.corrector.name, []
        if options.causal != (options.sliding_window is not None):
            out.append(
                "SGLang runs sliding layers causally and full ones not, whatever dflash_config.causal says; vLLM obeys"
            )
        if options.sample_from_anchor and corrector != "DominoCorrector":
            out.append(
                "SGLang does not read sample_from_anchor in this format: it would take every slot for the one before, "
                "without an error; vLLM refuses true or, in recent versions, reads it"
            )
        if options.conv_kernel_size and corrector != "SelectorCorrector":
            out.append("DFlash 2's convolutions without its selector: not known to be loaded by any engine")
        if corrector == "DominoCorrector":
            out.append("vLLM has no Domino; SGLang does")
        if corrector != "SelectorCorrector" and any(v not in (None, 1.0) for v in checkpoint.target.scales.values()):
            out.append(
                f"target scaling {checkpoint.target.scales}: vLLM reads it for DFlash 2 only, so that this "
                "drafter would be fed unscaled embeddings"
            )
        return out

    @override
    def config(self, checkpoint: DraftCheckpoint) -> Config:
        options, target, corrector = checkpoint.drafter, checkpoint.target, checkpoint.corrector
        nested: Config = {
            "mask_token_id": target.mask_token_id,
            "target_layer_ids": list(target.taps),
            "block_size": options.block_size,
            "causal": options.causal,
        }
        if options.sliding_window is not None:
            nested |= {"use_swa": True, "swa_window_size": options.sliding_window}
        if target.num_layers is not None:
            nested["num_target_layers"] = target.num_layers
        if corrector.name == "DominoCorrector":
            # SGLang does not read sample_from_anchor; Domino has a field of its own for it
            nested |= {
                "projector_type": "domino",
                "shift_label": options.sample_from_anchor,
                "pure_draft_prefix_len": 1,
                "gru_hidden_dim": corrector.facts["hidden"],
                "emb_dim": corrector.facts["rank"],
            }
        else:
            nested["sample_from_anchor"] = options.sample_from_anchor
        if corrector.name == "SelectorCorrector":
            nested |= {"selector_rank": corrector.facts["rank"], "selector_top_k": corrector.candidates}
        nested |= convolution_fields(checkpoint)
        for ours, theirs in SCALES.items():
            if target.scales.get(ours) not in (None, 1.0):
                nested[theirs] = target.scales[ours]
        second = corrector.name == "SelectorCorrector" or options.conv_kernel_size > 0
        fields: Config = {
            **layer_fields(checkpoint),
            "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
            "block_size": options.block_size,
            "is_causal": options.causal,
            "dflash_config": nested,
        }
        if target.num_layers is not None:
            fields["num_target_layers"] = target.num_layers
        return fields

    @override
    def head_tensors(self, checkpoint: DraftCheckpoint, rows: FrozenRows | None) -> Tensors:
        # loaders of DFlash 2 ask for convolutions
        return {**super().head_tensors(checkpoint, rows), **identities(checkpoint)}

    @override
    def parse(self, config: Mapping[str, Any], tensors: Tensors, where: str) -> DraftCheckpoint:
        inner = f"{where}, dflash_config"
        nested = dict(config["dflash_config"] or {})
        for name in ("attention_sink_bias", "attention_value_scale"):
            if nested.get(name) is not None:
                raise ValueError(f"{inner}: {name} is {nested[name]!r}; specdraft's DFlash does not have it")
        layers = read_layers(config, where, nested.get("swa_window_size") if nested.get("use_swa") else None)
        if nested.get("use_swa") and layers["sliding_window"] is None:
            required(nested, "swa_window_size", f"{inner}: use_swa is true, but it", '"swa_window_size": its tokens')
        tensors, trained = without_identities(nested, tensors, inner)
        corrector, tensors = self.read_head(nested, tensors, inner)
        count = agreed(where, "num_target_layers", nested.get("num_target_layers"), config.get("num_target_layers"))
        block = agreed(where, "block_size", nested.get("block_size"), config.get("block_size"))
        causal = agreed(where, "causal", nested.get("causal"), config.get("is_causal"))
        options = DFlashOptions(
            **layers,
            block_size=integer({"block_size": block}, "block_size", where),
            sample_from_anchor=_slots(nested, inner),
            # without a word, sliding layers are causal and full ones are not, as the engines have it
            causal=layers["sliding_window"] is not None if causal is None else bool(causal),
            **convolutions(nested, inner, trained),
        )
        taps = layer_ids(nested, "target_layer_ids", inner, 0, count)
        mask = mask_token(nested, inner, config["vocab_size"])
        target = target_facts(config, taps, mask, count, scales=_scales(nested))
        weights = check_backbone(tensors, options, target, where)
        return DraftCheckpoint(self.name, target, options, weights, corrector)

    def read_head(self, nested: Config, tensors: Tensors, where: str) -> tuple[CorrectorPart, Tensors]:
        """The corrector, and the tensors that are not its own."""
        kind = nested.get("projector_type")
        if kind == "domino":
            return _domino(nested, tensors, where)
        if kind not in (None, "dflash", "dflash2"):
            raise ValueError(f"{where}: projector_type {kind!r} is unknown to specdraft; it reads dflash and domino")
        if (nested.get("selector_rank") is None) != (nested.get("selector_top_k") is None):
            raise ValueError(f"{where}: selector_rank and selector_top_k go together; add the one that is missing")
        if nested.get("selector_rank") is None:
            return CorrectorPart(), tensors
        mine, rest = take(tensors, SELECTOR)
        rank = integer(nested, "selector_rank", where)
        _same_rank(where, "selector_rank", rank, mine["hidden_projection.weight"].shape[0])
        facts = {"rank": rank, "codebooks": True}
        return corrector_part("SelectorCorrector", facts, mine, integer(nested, "selector_top_k", where, 2)), rest


def selector_refusals(corrector: CorrectorPart) -> list[str]:
    """What keeps a selector out of the formats of DFlash 2; nothing for another corrector."""
    out: list[str] = []
    if corrector.name != "SelectorCorrector":
        return out
    if not corrector.facts["codebooks"]:
        out.append(
            "codebooks: false projects the target's embedding, the format stores a vector per token; "
            "train the selector with codebooks: true"
        )
    if corrector.candidates is None:
        out.append(
            "candidates: the checkpoint does not say how many the selector chooses from; give them with --candidates"
        )
    return out


def _domino(nested: Config, tensors: Tensors, where: str) -> tuple[CorrectorPart, Tensors]:
    prefix = integer(nested, "pure_draft_prefix_len", where, 0)
    if prefix != 1:
        raise ValueError(f"{where}: pure_draft_prefix_len is {prefix}; specdraft's Domino leaves one slot uncorrected")
    mine, rest = take(tensors, DOMINO)
    facts = {"hidden": integer(nested, "gru_hidden_dim", where), "rank": integer(nested, "emb_dim", where)}
    _same_rank(where, "gru_hidden_dim", facts["hidden"], mine["prefix_gru.weight_hh_l0"].shape[1])
    _same_rank(where, "emb_dim", facts["rank"], mine["project.weight"].shape[0])
    return corrector_part("DominoCorrector", facts, mine), rest


def _same_rank(where: str, name: str, said: int, found: int) -> None:
    if said != found:
        raise ValueError(f"{where}: {name} is {said}, but the weights have {found}; correct the field")


def _slots(nested: Config, where: str) -> bool:
    if nested.get("projector_type") != "domino":
        return slots(nested, where)
    shifted = slots(nested, where, "shift_label")
    return bool(agreed(where, "shift_label / sample_from_anchor", shifted, nested.get("sample_from_anchor")))


def _scales(nested: Config) -> dict[str, float | None]:
    """Scales that the file names, with the neutral value for those beside them; empty if it names none."""
    if all(nested.get(theirs) is None for theirs in SCALES.values()):
        return {}
    neutral = {"embedding": 1.0, "multiplier": 1.0, "softcap": None}
    return {ours: nested.get(theirs, neutral[ours]) for ours, theirs in SCALES.items()}
