"""Drafters to and from other projects: the commands ``export`` and ``inspect``, and loading an exported folder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from specdraft import correctors
from specdraft.checkpoints import (
    FORMATS,
    CorrectorPart,
    DFlashOptions,
    DraftCheckpoint,
    FrozenRows,
    format_named,
    read_checkpoint,
    read_folder,
)
from specdraft.checkpoints.facts import KEY
from specdraft.checkpoints.fields import LAST_LAYER
from specdraft.checkpoints.lightning_file import Content, from_content, load_content, target_of
from specdraft.checkpoints.record import TargetFacts
from specdraft.correctors import Corrector
from specdraft.drafters import DFlash, Drafter
from specdraft.module import DraftingModule
from specdraft.targets import TargetConfig
from specdraft.targets.load import load_model
from specdraft.types import TargetSpec


def export(
    checkpoint: str,
    format: Literal["zlab", "deepspec", "speculators", "dcoco"],
    out: str,
    target: str | None = None,
    dtype: Literal["keep", "float32", "bfloat16"] = "keep",
    candidates: int | None = None,
    drafter_only: bool = False,
) -> None:
    """Write a drafter in the format of another project, so that its engines load it.

    Writes ``config.json``, ``model.safetensors`` and ``specdraft.json`` (where it came from). What the format cannot
    express is refused with the reason; the same folder can be read back by ``--model.init_from`` and ``--checkpoint``.

    Args:
        checkpoint: Checkpoint written by ``specdraft fit``, or an exported folder to convert.
        format: zlab (SGLang, vLLM), deepspec, speculators (vLLM), or dcoco.
        out: Folder to write; must hold no checkpoint yet.
        target: Target by name or folder, as the engines will find it; null takes the checkpoint's.
        dtype: Type of the written weights; keep is the checkpoint's.
        candidates: Candidates of a selector or DCOCO, where the checkpoint is too old to say.
        drafter_only: Leave the corrector out.
    """
    found = read_checkpoint(checkpoint)
    if target is not None:
        found = replace(found, target=replace(found.target, name=target))
    if candidates is not None:
        found = replace(found, corrector=replace(found.corrector, candidates=candidates))
    if drafter_only:
        found = replace(found, corrector=CorrectorPart())
    if dtype != "keep":
        found = _as_type(found, getattr(torch, dtype))
    writer = format_named(format)
    rows = None
    if not writer.refusals(found) and writer.needs_rows(found):
        rows = frozen_rows(found)
    writer.save(found, Path(out), rows)
    for note in (*found.notes, *writer.cautions(found)):
        print(f"note: {note}")
    print(f"wrote {out} in the format of {writer.origin}: {_slots(found.drafter)}")


def inspect(path: str) -> None:
    """Say what a drafter checkpoint is, and what each public format would refuse of it.

    Args:
        path: Checkpoint written by ``specdraft fit``, or an exported folder.
    """
    if Path(path).is_dir():
        print(described(read_folder(path), path))
        return
    content = load_content(path)
    known = content[KEY]["drafter"]["class"] == "DFlash"
    print(described(from_content(content, path), path) if known else _facts_of(content, path))


def _facts_of(content: Content, path: str) -> str:
    """What the file of a drafter of another class says of itself."""
    facts, state = content[KEY], content["state_dict"]

    def part(name: str) -> str:
        known = facts.get(name) or {"class": "not named"}
        said = ", ".join(f"{key} {value}" for key, value in known.items() if key != "class")
        size = sum(tensor.numel() for key, tensor in state.items() if key.startswith(f"{name}."))
        return f"{known['class']}{f': {said}' if said else ''}, {size:,} parameters"

    reason = f"refused: the public formats hold DFlash drafters, not {facts['drafter']['class']}"
    lines = [
        ("format", f"specdraft ({path})"),
        *_target_lines(target_of(content)),
        ("drafter", part("drafter")),
        ("corrector", part("corrector")),
        ("draft vocabulary", str(facts.get("draft_vocab_size") or "all")),
        *((f"export {name}", reason) for name in sorted(FORMATS)),
    ]
    return "\n".join(f"{name:<18} {value}" for name, value in lines)


def _target_lines(target: TargetFacts) -> list[tuple[str, str]]:
    return [
        ("target", f"{target.name or 'not named'}: width {target.hidden_size}, vocabulary {target.vocab_size}, "
                   f"{target.num_layers or 'an unknown number of'} layers"),
        ("taps", f"{list(target.taps)} (outputs of these layers, HF hidden_states[i + 1])"),
        ("mask token", str(target.mask_token_id)),
    ]  # fmt: skip


def described(checkpoint: DraftCheckpoint, path: str) -> str:
    """The text of ``specdraft inspect``.

    Args:
        checkpoint: What to describe.
        path: Where it is from.
    """
    target, options, corrector = checkpoint.target, checkpoint.drafter, checkpoint.corrector
    size = sum(tensor.numel() for tensor in checkpoint.weights.values())
    extras = [name for name in ("tap_norm", "layer_fusion", "causal") if getattr(options, name)]
    extras += [] if options.sliding_window is None else [f"sliding_window {options.sliding_window}"]
    if options.conv_kernel_size:
        extras.append(f"conv_kernel_size {options.conv_kernel_size}, conv_group_size {options.conv_group_size}")
    choices = {**corrector.facts, **corrector.sizes}
    if corrector.candidates is not None:
        choices["candidates"] = corrector.candidates
    said = ", ".join(f"{name} {value}" for name, value in choices.items())
    parts = sum(tensor.numel() for tensor in corrector.weights.values())
    ids = checkpoint.draft_token_ids
    lines = [
        ("format", f"{checkpoint.format} ({path})"),
        *_target_lines(target),
        ("slots", _slots(options)),
        ("drafter", f"DFlash: {options.num_layers} layers, {options.num_attention_heads} heads and "
                    f"{options.num_key_value_heads} key/value heads of {options.head_dim}, intermediate size "
                    f"{options.intermediate_size}, {size:,} parameters in {_name(checkpoint.dtype)}"),
        ("options", ", ".join(extras) or "none"),
        ("corrector", f"{corrector.name}{f': {said}' if said else ''}{f', {parts:,} parameters' if parts else ''}"),
        ("draft vocabulary", "all" if ids is None else f"{len(ids)} of {target.vocab_size} tokens"),
        ("training", ", ".join(f"{k} {_value(v)}" for k, v in checkpoint.training.items()) or "the file says nothing"),
    ]  # fmt: skip
    lines += [("note", note) for note in checkpoint.notes]
    out = [f"{name:<18} {value}" for name, value in lines]
    for name, each in sorted(FORMATS.items()):
        reasons = each.refusals(checkpoint)
        out.append(f"{f'export {name}':<18} {'refused' if reasons else 'possible'} ({each.origin})")
        out += [f"{'':<18} - {reason}" for reason in reasons or each.cautions(checkpoint)]
    return "\n".join(out)


def module_from_folder(folder: str, device: str = "cpu", target: str | None = None) -> DraftingModule:
    """A module with an exported drafter, its target loaded.

    Args:
        folder: Exported folder.
        device: Where the target is loaded.
        target: Target by name or folder; None takes the one that the folder names.

    Raises:
        ValueError: If the folder names no target, or does not fit it.
    """
    found = read_folder(folder)
    name = target or found.target.name
    if name is None:
        raise ValueError(f"{folder} does not say which target it was made for; name it with --target")
    module = DraftingModule(
        TargetConfig(name, taps=list(found.target.taps), mask_token_id=found.target.mask_token_id),
        drafter=partial(_drafter, options=found.drafter),
        corrector=partial(_corrector, part=found.corrector),
        draft_vocab_size=None if found.draft_token_ids is None else len(found.draft_token_ids),
    )
    module.to(device)
    module.configure_model()
    last = module.target.spec.num_layers - 1  # a file need not say how deep its target is
    if last in found.target.taps:
        raise ValueError(f"{folder}: tap {last} {LAST_LAYER}")
    if not module.warm_start(folder):
        raise ValueError(f"{folder}: the weights of its {found.corrector.name} do not fit the class of that name")
    return module


def frozen_rows(checkpoint: DraftCheckpoint) -> FrozenRows:
    """Embedding and head of a checkpoint's target.

    Raises:
        ValueError: If the target is not named, or is another one than the drafter was made for.
    """
    target = checkpoint.target
    if target.name is None:
        raise ValueError("the format repeats the target's matrices, and the checkpoint names no target; give --target")
    model, _ = load_model(target.name)
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise ValueError(f"the head of {target.name!r} has a bias, which the format has no place for")
    shape = (target.vocab_size, target.hidden_size)
    rows = {"embedding": model.get_input_embeddings().weight, "head": model.get_output_embeddings().weight}
    for name, matrix in rows.items():
        if tuple(matrix.shape) != shape:
            raise ValueError(
                f"the {name} of {target.name!r} is {tuple(matrix.shape)}, but the drafter was made for {shape}"
            )
    return FrozenRows(**{name: matrix.detach() for name, matrix in rows.items()})


def _drafter(spec: TargetSpec, options: DFlashOptions) -> Drafter:
    # the epsilon of the norms is the only fact of the spec that a public drafter has a value of its own for
    return DFlash(replace(spec, rms_norm_eps=options.rms_norm_eps), **options.init_args())


def _corrector(spec: TargetSpec, part: CorrectorPart) -> Corrector:
    made: Corrector = getattr(correctors, part.name)(spec, **part.init_args())
    return made


def _as_type(checkpoint: DraftCheckpoint, dtype: torch.dtype) -> DraftCheckpoint:
    corrector = checkpoint.corrector
    cast = {name: tensor.to(dtype) for name, tensor in corrector.weights.items()}
    weights = {name: tensor.to(dtype) for name, tensor in checkpoint.weights.items()}
    return replace(checkpoint, weights=weights, corrector=replace(corrector, weights=cast))


def _slots(options: DFlashOptions) -> str:
    first, drafts = ("p+1+i", 0) if options.sample_from_anchor else ("p+i", 1)
    return (
        f"block of {options.block_size}: the anchor at position p and {options.block_size - 1} mask tokens, slot i "
        f"predicts the token at {first}, {options.block_size - drafts} drafts per round "
        f"(sample_from_anchor: {str(options.sample_from_anchor).lower()})"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
