"""Contract of a public checkpoint format: a folder with ``config.json`` and safetensors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import load_file, save_file
from torch import Tensor

from specdraft.checkpoints.fields import LAST_LAYER, Config, dump
from specdraft.checkpoints.folding import fold_layer_fusion
from specdraft.checkpoints.record import CorrectorPart, DraftCheckpoint, Tensors

WEIGHTS, CONFIG, ORIGIN = "model.safetensors", "config.json", "specdraft.json"


@dataclass(frozen=True)
class FrozenRows:
    """The target's own matrices, for formats that repeat them.

    Attributes:
        embedding: ``[V, H]`` input embedding.
        head: ``[V, H]`` vocabulary projection.
    """

    embedding: Tensor
    head: Tensor


class Format(ABC):
    """Writes and reads one public format.

    A subclass says what it cannot express, how the fields and tensors are named, and how to read them back. All
    formats store the backbone under specdraft's own names, which are the published ones.

    Attributes:
        name: Name on the command line.
        origin: What loads it, in words.
        heads: Correctors that it has, each with our and the public names of its tensors.
        elsewhere: Where to turn with some of the other correctors.
        sizes_vocabulary: Whether the format has a draft vocabulary.
        convolutions: Whether the format has DFlash 2's convolutions.
    """

    name: ClassVar[str]
    origin: ClassVar[str]
    heads: ClassVar[dict[str, dict[str, str]]]
    elsewhere: ClassVar[dict[str, str]] = {}
    sizes_vocabulary: ClassVar[bool] = False
    convolutions: ClassVar[bool] = False

    @abstractmethod
    def recognises(self, folder: Path, config: Mapping[str, Any]) -> bool:
        """Whether a folder with this ``config.json`` is of the format."""

    @abstractmethod
    def own_refusals(self, checkpoint: DraftCheckpoint) -> list[str]:
        """What else of a checkpoint this format in particular cannot express, each with the reason."""

    @abstractmethod
    def config(self, checkpoint: DraftCheckpoint) -> Config:
        """The fields of ``config.json``."""

    def head_tensors(self, checkpoint: DraftCheckpoint, rows: FrozenRows | None) -> Tensors:
        """Tensors besides the backbone: the corrector's, and the target's where the format repeats them."""
        names = self.heads[checkpoint.corrector.name]
        return {names[name]: tensor for name, tensor in checkpoint.corrector.weights.items()}

    @abstractmethod
    def parse(self, config: Mapping[str, Any], tensors: Tensors, where: str) -> DraftCheckpoint:
        """Read fields and tensors back.

        Raises:
            ValueError: If something is missing that must not be guessed, or specdraft has no part for it.
        """

    def needs_rows(self, checkpoint: DraftCheckpoint) -> bool:
        """Whether the target's matrices are needed to write it."""
        return False

    def cautions(self, checkpoint: DraftCheckpoint) -> list[str]:
        """What the format expresses, but not every engine that loads it respects."""
        return []

    def refusals(self, checkpoint: DraftCheckpoint) -> list[str]:
        """Why a checkpoint cannot be written, one reason each; empty if it can."""
        checkpoint = fold_layer_fusion(checkpoint)
        options, target, out = checkpoint.drafter, checkpoint.target, []
        if options.tap_norm:
            out.append(
                "tap_norm: the format has no norm per tap, and a division by each tap's own magnitude cannot be folded "
                "into fc; train with tap_norm: false"
            )
        if options.layer_fusion:
            out.append(
                "layer_fusion: the format has one context for all layers, and these layers mix the taps differently; "
                "train with layer_fusion: false"
            )
        if options.conv_kernel_size and not self.convolutions:
            out.append("conv_kernel_size: the format has no convolutions; train with conv_kernel_size: 0")
        if checkpoint.draft_token_ids is not None and not self.sizes_vocabulary:
            out.append("draft_vocab_size: the format has no draft vocabulary; train with draft_vocab_size: null")
        if target.num_layers is not None and target.num_layers - 1 in target.taps:
            out.append(f"tap {target.num_layers - 1} {LAST_LAYER}")
        if options.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
            out.append(
                "partial_rotary_factor: the loaders' Qwen3 layers rotate the whole head; give the drafter "
                "rope_parameters without it"
            )
        return out + self._head_refusals(checkpoint.corrector) + self.own_refusals(checkpoint)

    def _head_refusals(self, corrector: CorrectorPart) -> list[str]:
        if corrector.name not in self.heads:
            hint = self.elsewhere.get(corrector.name, "export the drafter alone with --drafter-only")
            return [f"corrector {corrector.name}: the format has no such head; {hint}"]
        unknown = sorted(set(corrector.weights) - set(self.heads[corrector.name]))
        return [f"corrector {corrector.name}: the format has no place for its {unknown[0]!r}"] if unknown else []

    def save(self, checkpoint: DraftCheckpoint, folder: Path, rows: FrozenRows | None = None) -> None:
        """Write the folder.

        Args:
            checkpoint: What to write.
            folder: Where to; made if needed, must hold no checkpoint yet.
            rows: The target's matrices, if :meth:`needs_rows` says so.

        Raises:
            ValueError: If the format cannot express it; the message names all reasons.
            FileExistsError: If the folder holds a checkpoint.
        """
        if reasons := self.refusals(checkpoint):
            raise ValueError(f"format {self.name} cannot express this drafter:\n- " + "\n- ".join(reasons))
        if (folder / CONFIG).exists():
            raise FileExistsError(f"{folder} already holds a {CONFIG}; choose another --out")
        checkpoint = fold_layer_fusion(checkpoint)
        tensors = {**checkpoint.weights, **self.head_tensors(checkpoint, rows)}
        folder.mkdir(parents=True, exist_ok=True)
        # tensors that share memory, such as tied matrices, cannot be written as they are
        save_file({name: t.detach().cpu().clone() for name, t in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
        origin = {
            "target": checkpoint.target.name,
            "target_layers": checkpoint.target.num_layers,
            "training": checkpoint.training,
        }
        (folder / ORIGIN).write_text(dump(origin), encoding="utf-8")
        (folder / CONFIG).write_text(dump(self.config(checkpoint)), encoding="utf-8")

    def load(self, folder: Path) -> DraftCheckpoint:
        """Read a folder.

        Raises:
            FileNotFoundError: If it holds no weights.
            ValueError: As :meth:`parse`.
        """
        checkpoint = self.parse(read_config(folder), read_tensors(folder), str(folder / CONFIG))
        origin = folder / ORIGIN
        if not origin.is_file():
            return checkpoint
        said = json.loads(origin.read_text(encoding="utf-8"))
        known = checkpoint.target
        layers = known.num_layers or said.get("target_layers")
        target = replace(known, name=known.name or said.get("target"), num_layers=layers)
        return replace(checkpoint, target=target, training=said.get("training", {}))


def read_config(folder: Path) -> Config:
    """Fields of a folder's ``config.json``.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is broken.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {CONFIG}; name the folder of an exported drafter")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: broken JSON: {error.msg}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold an object, got {type(config).__name__}")
    return config


def read_tensors(folder: Path) -> Tensors:
    """All tensors of a folder's safetensors files, on the CPU.

    Raises:
        FileNotFoundError: If there are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no .safetensors file; convert the weights to safetensors first")
    out: Tensors = {}
    for file in files:
        out.update(load_file(file))
    return out
