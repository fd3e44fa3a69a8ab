"""DCOCO's folder: a z-lab DFlash that loads alone, and the corrector in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import save_file
from typing_extensions import override

from specdraft.checkpoints.fields import dump, integer, required
from specdraft.checkpoints.formats import CONFIG, WEIGHTS, FrozenRows, read_config, read_tensors
from specdraft.checkpoints.record import CorrectorPart, DraftCheckpoint, Tensors, corrector_part
from specdraft.checkpoints.zlab import ZLab

FOLDER, VERSION = "corrector", 2
TENSORS = (
    "token_proj.weight",
    "hidden_proj.weight",
    "pair_proj.weight",
    "mlp_in.weight",
    "mlp_in.bias",
    "mlp_out.weight",
    "mlp_out.bias",
)


class DCOCOFolder(ZLab):
    """``config.json`` and ``model.safetensors`` as :class:`ZLab` writes a DFlash, and a folder ``corrector``.

    ``corrector/config.json`` holds ``architectures: ["DCOCODraftModel"]``, ``format_version: 2``, ``candidates``,
    ``width``, ``pair_width``, ``hidden``, ``score_first``, ``rms_inputs`` and ``hidden_size``.
    ``corrector/model.safetensors`` holds, with w = width, p = pair_width, h = hidden, C = candidates:

    - ``token_proj.weight`` ``[w, H]``, ``hidden_proj.weight`` ``[w, H]``, ``pair_proj.weight`` ``[p, 2 H]``;
    - ``mlp_in.weight`` ``[h, 3 w + p + 3]`` and ``.bias`` ``[h]``; its columns are the states of predecessor and
      candidate, their product, the pair state, and logp of the predecessor, logp and gap of the candidate;
    - ``mlp_out.weight`` ``[1, h]`` and ``.bias`` ``[1]``.

    The scores are those of :class:`specdraft.correctors.DCOCO`, our reading of the method's model cards; no engine
    reads this folder yet, and one that loads the drafter alone drafts without correction.
    """

    name = "dcoco"
    origin = "specdraft; the DFlash part: SGLang, vLLM"
    heads: ClassVar[dict[str, dict[str, str]]] = {"DCOCO": {tensor: tensor for tensor in TENSORS}}
    elsewhere: ClassVar[dict[str, str]] = {}

    @override
    def recognises(self, folder: Path, config: Mapping[str, Any]) -> bool:
        return super().recognises(folder, config) and (folder / FOLDER / CONFIG).is_file()

    @override
    def own_refusals(self, checkpoint: DraftCheckpoint) -> list[str]:
        if checkpoint.corrector.name == "DCOCO" and checkpoint.corrector.candidates is None:
            return ["candidates: the checkpoint does not say how many DCOCO chooses from; give them with --candidates"]
        return []

    @override
    def cautions(self, checkpoint: DraftCheckpoint) -> list[str]:
        return [*super().cautions(checkpoint), "no engine reads the corrector yet: the drafter is served without it"]

    @override
    def _head_refusals(self, corrector: CorrectorPart) -> list[str]:
        if corrector.name != "DCOCO":
            return [f"corrector {corrector.name}: this format is DCOCO's; choose another --format"]
        return super()._head_refusals(corrector)

    @override
    def save(self, checkpoint: DraftCheckpoint, folder: Path, rows: FrozenRows | None = None) -> None:
        super().save(checkpoint, folder, rows)
        corrector, inner = checkpoint.corrector, folder / FOLDER
        inner.mkdir()
        weights = {name: tensor.detach().cpu().clone() for name, tensor in corrector.weights.items()}
        save_file(weights, inner / WEIGHTS, {"format": "pt"})
        fields = {
            "architectures": ["DCOCODraftModel"],
            "format_version": VERSION,
            "hidden_size": checkpoint.target.hidden_size,
            "candidates": corrector.candidates,
            "score_first": corrector.facts["score_first"],
            "rms_inputs": corrector.facts["rms_inputs"],
            **corrector.sizes,
        }
        (inner / CONFIG).write_text(dump(fields), encoding="utf-8")

    @override
    def head_tensors(self, checkpoint: DraftCheckpoint, rows: FrozenRows | None) -> Tensors:
        return {}  # they lie in a folder of their own

    @override
    def load(self, folder: Path) -> DraftCheckpoint:
        checkpoint = super().load(folder)
        inner = folder / FOLDER
        config, where = read_config(inner), str(inner / CONFIG)
        if config.get("format_version") not in (1, VERSION):
            raise ValueError(
                f"{where}: format_version is {config.get('format_version')!r}; specdraft reads 1 and {VERSION}"
            )
        if config["format_version"] == 1:  # before inputs were scaled
            config = {**config, "rms_inputs": False}
        weights = read_tensors(inner)
        if set(weights) != set(TENSORS):
            odd = sorted(set(weights) ^ set(TENSORS))[0]
            raise ValueError(f"{inner}: the tensor {odd!r} is missing or unknown")
        first = required(
            config, "score_first", where, '"score_first": whether the first slot is scored given the anchor'
        )
        scaled = required(config, "rms_inputs", where, '"rms_inputs": whether embeddings and states are scaled')
        facts = {"score_first": first, "rms_inputs": scaled}
        part = corrector_part("DCOCO", facts, weights, integer(config, "candidates", where, 2))
        for option, found in part.sizes.items():
            if integer(config, option, where) != found:
                raise ValueError(
                    f"{where}: {option} is {config[option]}, but the weights have {found}; correct the field"
                )
        return replace(checkpoint, corrector=part)
