"""The public formats by name, and reading whatever a path holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

from specdraft.checkpoints.dcoco import DCOCOFolder
from specdraft.checkpoints.deepspec import DeepSpec
from specdraft.checkpoints.formats import CONFIG, Format, read_config
from specdraft.checkpoints.lightning_file import Content, from_content, load_content, to_content
from specdraft.checkpoints.record import DraftCheckpoint
from specdraft.checkpoints.speculators import Speculators
from specdraft.checkpoints.zlab import ZLab

# the narrower before the wider: a DCOCO folder is also a z-lab folder
FORMATS: dict[str, Format] = {each.name: each for each in (Speculators(), DeepSpec(), DCOCOFolder(), ZLab())}


def format_named(name: str) -> Format:
    """A format by its name.

    Raises:
        ValueError: If there is none.
    """
    if name not in FORMATS:
        raise ValueError(f"format {name!r} is unknown; choose one of {', '.join(sorted(FORMATS))}")
    return FORMATS[name]


def read_folder(folder: str | Path) -> DraftCheckpoint:
    """Read an exported drafter.

    Raises:
        FileNotFoundError: If it is no folder of a drafter.
        ValueError: If no format recognises it, or something is missing that must not be guessed.
    """
    folder = Path(folder)
    config = read_config(folder)
    for each in FORMATS.values():
        if each.recognises(folder, config):
            return each.load(folder)
    raise ValueError(
        f"{folder / CONFIG} is no drafter that specdraft reads: it has neither dflash_config (z-lab), nor markov_rank "
        "(DeepSpec), nor speculators_model_type (speculators)"
    )


def read_checkpoint(path: str | Path) -> DraftCheckpoint:
    """Read a file of ``specdraft fit`` or an exported folder; errors of :func:`read_folder`."""
    if Path(path).is_dir():
        return read_folder(path)
    return from_content(load_content(path), str(path))


def read_content(path: str | Path) -> Content:
    """Facts and state dict of a file or an exported folder; errors of :func:`read_folder`."""
    return to_content(read_folder(path)) if Path(path).is_dir() else load_content(path)


def digest(path: str | Path) -> str:
    """Sixteen hex digits that tell the content of a file, or the weights and settings of a folder.

    What else lies in a folder, such as a policy that was tuned for it, makes no other drafter.
    """
    place, found = Path(path), hashlib.sha256()
    for file in sorted([*place.rglob("*.safetensors"), *place.rglob(CONFIG)]) if place.is_dir() else [place]:
        found.update(file.read_bytes())
    return found.hexdigest()[:16]
