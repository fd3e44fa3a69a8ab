"""Names of the correctors' tensors in the public formats."""

from __future__ import annotations

from specdraft.checkpoints.record import Tensors

# ours -> public; a kind of corrector that lacks a tensor leaves its line unused
DOMINO = {
    "prefix_gru.weight_ih_l0": "prefix_gru.weight_ih_l0",
    "prefix_gru.weight_hh_l0": "prefix_gru.weight_hh_l0",
    "project.weight": "embed_proj.0.weight",
    "output.weight": "embed_proj.2.weight",
}
SELECTOR = {
    "hidden_projection.weight": "candidate_selector.hidden_projection.weight",
    "predecessor": "candidate_selector.predecessor_codebook",
    "successor": "candidate_selector.successor_codebook",
}
MARKOV = {
    "predecessor.weight": "markov_head.markov_w1.weight",
    "output.weight": "markov_head.markov_w2.weight",
    "gate_proj.weight": "markov_head.gate_proj.weight",
    "gate_proj.bias": "markov_head.gate_proj.bias",
    "joint_proj.weight": "markov_head.joint_proj.weight",
    "joint_proj.bias": "markov_head.joint_proj.bias",
}
NONE: dict[str, str] = {}


def take(tensors: Tensors, names: dict[str, str], wanted: set[str] | None = None) -> tuple[Tensors, Tensors]:
    """Split a public state dict into the corrector's (renamed) and the rest.

    Args:
        tensors: The public state dict.
        names: Ours to public.
        wanted: Public names that must be there; None for all of ``names``.

    Raises:
        ValueError: If a tensor is missing.
    """
    for name in sorted(set(names.values()) if wanted is None else wanted):
        if name not in tensors:
            raise ValueError(f"the tensor {name!r} is missing from the weights; the file is incomplete")
    back = {public: own for own, public in names.items()}
    mine = {back[name]: tensor for name, tensor in tensors.items() if name in back}
    return mine, {name: tensor for name, tensor in tensors.items() if name not in back}
