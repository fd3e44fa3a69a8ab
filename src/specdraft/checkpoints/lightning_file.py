"""Checkpoints that ``specdraft fit`` writes, as files and as records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specdraft.checkpoints.atomic import damage_named
from specdraft.checkpoints.facts import KEY
from specdraft.checkpoints.record import DFlashOptions, DraftCheckpoint, TargetFacts, Tensors, corrector_part

Content = dict[str, Any]


def load_content(path: str | Path) -> Content:
    """Everything in a file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, or no checkpoint of specdraft.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    with damage_named(path):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or KEY not in content:
        raise ValueError(f"{path} is not a specdraft checkpoint: it has no {KEY!r} entry")
    return content


def from_content(content: Content, where: str) -> DraftCheckpoint:
    """A record of a file's content.

    Raises:
        ValueError: If the drafter is not a DFlash, so that no public format has it.
    """
    facts = content[KEY]
    if facts["drafter"]["class"] != "DFlash":
        raise ValueError(f"{where} holds a {facts['drafter']['class']}; the public formats hold DFlash drafters")
    state = content["state_dict"]
    weights = _under(state, "drafter.")
    spec, known = facts["spec"], facts.get("corrector", {"class": "NoCorrector"})
    target = target_of(content)
    notes = [] if "scales" in facts else ["written before the target's scaling was stored; taken for none"]
    if known.get("confidence"):
        notes.append("the confidence head is left out: it only shortens drafts, and no format has its temperatures")
    corrector = corrector_part(
        known["class"],
        {name: value for name, value in known.items() if name not in ("class", "confidence")},
        {name: value for name, value in _under(state, "corrector.").items() if not name.startswith("confidence.")},
        _candidates(content),
    )
    ids = state.get("draft_token_ids")
    return DraftCheckpoint(
        "specdraft",
        target,
        _options(facts, weights, spec["rms_norm_eps"]),
        weights,
        corrector,
        ids if ids is not None and len(ids) else None,
        _training(content),
        tuple(notes),
    )


def target_of(content: Content) -> TargetFacts:
    """What a file's content says of the target."""
    facts = content[KEY]
    spec = facts["spec"]
    return TargetFacts(
        spec["name"],
        spec["hidden_size"],
        spec["vocab_size"],
        spec["num_layers"],
        tuple(spec["taps"]),
        spec["mask_token_id"],
        spec["max_position_embeddings"],
        facts.get("scales") or {},
        spec.get("architecture", ""),
    )


def to_content(checkpoint: DraftCheckpoint) -> Content:
    """What :meth:`specdraft.module.DraftingModule.warm_start` reads of a file; None where the record does not know.

    The target's name is left open: public files name it by hub name, or not at all.
    """
    target, ids = checkpoint.target, checkpoint.draft_token_ids
    state: Tensors = {f"drafter.{name}": tensor for name, tensor in checkpoint.weights.items()}
    state |= {f"corrector.{name}": tensor for name, tensor in checkpoint.corrector.weights.items()}
    state["draft_token_ids"] = torch.zeros(0, dtype=torch.int64) if ids is None else ids
    facts = {
        "spec": {
            "name": None,
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "num_layers": target.num_layers,
            "taps": list(target.taps),
            "mask_token_id": target.mask_token_id,
            "rms_norm_eps": checkpoint.drafter.rms_norm_eps,
        },
        "drafter": checkpoint.drafter.facts(),
        "draft_vocab_size": None if ids is None else len(ids),
        "corrector": {"class": checkpoint.corrector.name, **checkpoint.corrector.facts},
        "scales": target.scales or None,
    }
    return {KEY: facts, "state_dict": state}


def _under(state: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _options(facts: dict[str, Any], weights: Tensors, eps: float) -> DFlashOptions:
    """Options from what is stored, and sizes from the shapes."""
    width = weights["layers.0.self_attn.q_norm.weight"].shape[0]
    stored = facts["drafter"]
    return DFlashOptions(
        num_layers=sum(name.endswith("q_norm.weight") for name in weights),
        block_size=stored["block_size"],
        sample_from_anchor=stored["sample_from_anchor"],
        num_attention_heads=weights["layers.0.self_attn.q_proj.weight"].shape[0] // width,
        num_key_value_heads=weights["layers.0.self_attn.k_proj.weight"].shape[0] // width,
        head_dim=width,
        intermediate_size=weights["layers.0.mlp.gate_proj.weight"].shape[0],
        rms_norm_eps=eps,
        rope_parameters=dict(stored["rope_parameters"]),
        causal=stored["causal"],
        sliding_window=stored["sliding_window"],
        tap_norm=any(name.startswith("tap_norms.") for name in weights),
        layer_fusion="tap_mix" in weights,
        conv_kernel_size=stored.get("conv_kernel_size", 0),
        conv_group_size=stored.get("conv_group_size", 16),
    )


def _candidates(content: Content) -> int | None:
    """Candidates of the corrector: a choice of decoding, so that older files have it in the run's config only."""
    if content[KEY].get("corrector", {}).get("class") not in ("SelectorCorrector", "DCOCO"):
        return None
    if content[KEY].get("candidates") is not None:
        return int(content[KEY]["candidates"])
    config = (content.get("hyper_parameters") or {}).get("corrector") or {}
    found = (config.get("init_args") or {}).get("candidates") if isinstance(config, dict) else None
    return None if found is None else int(found)


def _training(content: Content) -> dict[str, Any]:
    """What the file says of the run, builtins only."""
    out: dict[str, Any] = {name: content[name] for name in ("epoch", "global_step") if name in content}
    config = content.get("hyper_parameters") or {}
    objective = config.get("objective") if isinstance(config, dict) else None
    options = (objective or {}).get("init_args") or {} if isinstance(objective, dict) else {}
    if options.get("num_anchors") is not None:
        out["num_anchors"] = int(options["num_anchors"])
    for part in ("inclusion", "weighting", "prediction"):
        chosen = options.get(part)
        name = chosen.get("class_path") if isinstance(chosen, dict) else chosen
        if isinstance(name, str):
            out[part] = name.rsplit(".", 1)[-1]
    for state in (content.get("callbacks") or {}).values():
        if isinstance(state, dict) and isinstance(state.get("monitor"), str) and state.get("current_score") is not None:
            out[state["monitor"]] = float(state["current_score"])
    return out
