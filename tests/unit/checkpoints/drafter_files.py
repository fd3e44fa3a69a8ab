"""Random drafters with every corrector, as records of the checkpoints that a run would have written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdraft.checkpoints import DraftCheckpoint, FrozenRows, format_named, read_folder
from specdraft.checkpoints.facts import KEY, checkpoint_facts
from specdraft.checkpoints.lightning_file import from_content
from specdraft.correctors import (
    DCOCO,
    Corrector,
    DominoCorrector,
    MarkovCorrector,
    NoCorrector,
    SelectorCorrector,
)
from specdraft.drafters import DFlash
from specdraft.types import TargetSpec

SPEC = TargetSpec(
    "some/target", hidden_size=32, vocab_size=40, num_layers=6, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, intermediate_size=48, rms_norm_eps=1e-5, taps=(1, 3), mask_token_id=39,
    architecture="LlamaForCausalLM",
)  # fmt: skip
SHIFTED = {"sample_from_anchor": True}
SCALES = {"embedding": 1.0, "multiplier": 1.0, "softcap": None}
CORRECTORS: dict[str, Any] = {
    "none": NoCorrector,
    "vanilla": lambda spec: MarkovCorrector(spec, "vanilla", rank=6),
    "rated": lambda spec: MarkovCorrector(spec, "vanilla", rank=6, confidence=True),
    "gated": lambda spec: MarkovCorrector(spec, "gated", rank=6),
    "rnn": lambda spec: MarkovCorrector(spec, "rnn", rank=6),
    "domino": lambda spec: DominoCorrector(spec, hidden=7, rank=6),
    "selector": lambda spec: SelectorCorrector(spec, candidates=5, rank=6),
    "projected": lambda spec: SelectorCorrector(spec, candidates=5, rank=6, codebooks=False),
    "dcoco": lambda spec: DCOCO(spec, candidates=5, width=4, pair_width=6, hidden=9, score_first=True),
}


def made(corrector: str = "none", ids: torch.Tensor | None = None, **options: Any) -> DraftCheckpoint:
    """A record of a two-layer drafter with random weights; options are those of DFlash."""
    torch.manual_seed(7)
    spec = SPEC if ids is None else replace(SPEC, draft_vocab_size=len(ids))
    drafter = DFlash(spec, **{"num_layers": 2, "block_size": 4, **options})
    head: Corrector = CORRECTORS[corrector](spec)
    for parameter in (*drafter.parameters(), *head.parameters()):
        parameter.data = torch.randn(parameter.shape)
    facts = {"class": type(head).__name__, **head.extra_state_for_checkpoint()}
    state = {f"drafter.{k}": v for k, v in drafter.state_dict().items()}
    state |= {f"corrector.{k}": v for k, v in head.state_dict().items()}
    state["draft_token_ids"] = torch.zeros(0, dtype=torch.int64) if ids is None else ids
    found = checkpoint_facts(spec, drafter, None if ids is None else len(ids), facts)
    found |= {"scales": dict(SCALES), "candidates": head.candidates}
    return from_content({KEY: found, "state_dict": state, "epoch": 2, "global_step": 30}, "memory")


def rows() -> FrozenRows:
    """The target's matrices."""
    torch.manual_seed(8)
    return FrozenRows(torch.randn(SPEC.vocab_size, SPEC.hidden_size), torch.randn(SPEC.vocab_size, SPEC.hidden_size))


def exported(checkpoint: DraftCheckpoint, name: str, folder: Path) -> DraftCheckpoint:
    """Write and read back."""
    format_named(name).save(checkpoint, folder, rows())
    return read_folder(folder)
