"""Loading a target: a name or folder of transformers, a GGUF file, or the embedded SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from specdraft.targets import smollm2
from specdraft.targets.families import refuse_unfit
from specdraft.targets.hf import HFTarget
from specdraft.targets.mask_token import pick_mask_token
from specdraft.targets.probe import reference_of, verify_target

_DTYPES: dict[str, Any] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": "auto"}


def load_target(
    path: str,
    *,
    dtype: Literal["float32", "bfloat16", "auto"] = "float32",
    attention: Literal["auto", "sdpa", "eager"] = "auto",
    taps: list[int] | int | Literal["all"] | None = None,
    mask_token_id: int | None = None,
    device: torch.device | str = "cpu",
    pack: Literal["auto", "always", "never"] = "auto",
) -> HFTarget:
    """Load a frozen target and check once, on four tokens, that it reproduces the model's own logits.

    Args:
        path: Model name, folder with safetensors, ``.gguf`` file, or ``smollm2-135m-instruct``.
        dtype: Type of the weights; ``auto`` takes the one that they were saved in.
        attention: Kernel of the training features: ``auto`` and ``sdpa`` are fused, ``eager`` is a slow reference.
        taps: Ids of the tapped layers, a number of evenly spaced ones, ``all``, or None for five.
        mask_token_id: Embedding row of undrafted slots, or None for the rule of
            :func:`specdraft.targets.mask_token.pick_mask_token`.
        device: Where the weights go.
        pack: Packed linear layers on the CPU: ``auto`` where they pay, ``always`` for every number of rows, ``never``.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If the target cannot be verified against, or an option does not fit.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; use float32, bfloat16 or auto")
    where, gguf = _located(str(smollm2.folder()) if path == smollm2.NAME else path)
    config = _config(where, gguf, path)
    refuse_unfit(config, path, _model_class(config))
    tokenizer = _tokenizer(where, gguf)
    # the model's own eager attention serves as the reference of the check; HFTarget replaces it
    options = {"gguf_file": gguf} if gguf else {}
    model: Any = AutoModelForCausalLM.from_pretrained(
        where, dtype=_DTYPES[dtype], attn_implementation="eager", **options
    )
    model = model.to(device).eval()
    logits, embeds = reference_of(model)
    if mask_token_id is None:
        mask_token_id = pick_mask_token(tokenizer, model.get_input_embeddings().weight.shape[0])
    target = HFTarget(
        model, name=path, taps=taps, mask_token_id=mask_token_id, attention=attention, pack=pack, tokenizer=tokenizer
    )
    verify_target(target, logits, embeds)
    return target


def _located(path: str) -> tuple[str, str | None]:
    """Folder or model name, and the name of the GGUF file in it if it is one."""
    place = Path(path).expanduser()
    if path.endswith(".gguf"):
        if not place.is_file():
            raise FileNotFoundError(f"there is no GGUF file {path!r}; check target.path")
        return str(place.parent), place.name
    if place.is_dir():
        if not (place / "config.json").is_file():
            raise FileNotFoundError(f"folder {path!r} holds no config.json; name the folder of a saved model")
        return str(place), None
    if place.is_file():
        raise ValueError(f"target {path!r} is a file, but not a .gguf; name the folder that holds config.json")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise FileNotFoundError(f"there is no folder {path!r}; check target.path")
    return path, None


def _config(where: str, gguf: str | None, path: str) -> Any:
    try:
        return AutoConfig.from_pretrained(where, **({"gguf_file": gguf} if gguf else {}))
    except OSError as error:
        raise FileNotFoundError(
            f"target {path!r} is no folder here, and no model of that name can be fetched or found in the local cache; "
            f"check the spelling, or use {smollm2.NAME!r}, which needs no download"
        ) from error


def _model_class(config: Any) -> type | None:
    """The class that ``AutoModelForCausalLM`` would load, without loading weights."""
    found = AutoModelForCausalLM._model_mapping.get(type(config), None)
    return found if isinstance(found, type) else None


def _tokenizer(where: str, gguf: str | None) -> Any | None:
    """The tokenizer, or None when a local folder holds none."""
    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if gguf is None and Path(where).is_dir() and not any((Path(where) / name).is_file() for name in files):
        return None
    return AutoTokenizer.from_pretrained(where, **({"gguf_file": gguf} if gguf else {}))
