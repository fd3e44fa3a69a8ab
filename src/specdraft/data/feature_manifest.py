"""What a feature cache was made for, and which files hold it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdraft.data.fingerprints import short_hash

LAYOUT = "shards-1"
# holds whatever block size, slot convention or corrector is trained on the features
CONVENTION = "features of position p: outputs of the tapped layers for token p (tap i = hidden_states[i+1])"


@dataclass
class Shard:
    """One finished file.

    Attributes:
        name: File name.
        bytes: Its size.
        sha256: Digest of the whole file.
        source_dtype: Type that the target computed in.
    """

    name: str
    bytes: int
    sha256: str
    source_dtype: str


@dataclass
class Manifest:
    """What a cache was made for.

    Attributes:
        target: Name of the target.
        taps: Tapped layers.
        hidden_size: Width H of the target.
        tokenizer: Fingerprint of vocabulary and chat template.
        rows: Fingerprint of the tokens of all rows.
        row_count: Number of rows.
        token_count: Number of tokens.
        dtype: Type on disk.
        last_hidden: Whether last hidden states (behind the final norm) are stored too.
        num_layers: Layers of the target.
        vocab_size: Vocabulary of the target.
        shard_bytes: Most bytes of features in a shard; a longer row makes a shard of its own.
        precision: Precision of fp32 matrix products while extracting.
        convention: What a feature is, in words.
        layout: Version of the files' layout.
        source_dtype: Type that the target computed in, and in which rows are returned.
        shards: The finished files, in order.
        complete: Set when everything has been written.
    """

    target: str
    taps: list[int]
    hidden_size: int
    tokenizer: str
    rows: str
    row_count: int
    token_count: int
    dtype: str
    last_hidden: bool
    num_layers: int = 0
    vocab_size: int = 0
    shard_bytes: int = 256 << 20
    precision: str = "highest"
    convention: str = CONVENTION
    layout: str = LAYOUT
    source_dtype: str = "float32"
    shards: list[Shard] = field(default_factory=list)
    complete: bool = False

    def fingerprint(self) -> str:
        """Hash of everything that the stored values depend on."""
        names = ("target", "taps", "hidden_size", "tokenizer", "rows", "row_count", "token_count", "dtype")
        return short_hash({**{name: getattr(self, name) for name in names}, "last_hidden": self.last_hidden})

    def differences(self, wanted: Manifest) -> list[str]:
        """Fields in which this cache does not serve ``wanted``, with both values."""
        names = ("target", "taps", "hidden_size", "tokenizer", "rows", "row_count", "token_count", "dtype")
        found = [(name, getattr(self, name), getattr(wanted, name)) for name in names]
        if wanted.last_hidden and not self.last_hidden:
            found.append(("last_hidden", False, True))
        if not self.complete:  # what is added to a cache must be like what is there
            found.append(("precision", self.precision, wanted.precision))
        return [f"{name} is {old!r} in the cache and {new!r} now" for name, old, new in found if old != new]


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a file, or None if there is none.

    Raises:
        ValueError: If it was written by another version.
    """
    try:
        value: Any = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    if not isinstance(value, dict) or value.get("layout") != LAYOUT:
        raise ValueError(
            f"the feature cache {path.parent} was made by another version of specdraft (layout "
            f"{value.get('layout', 'flat files') if isinstance(value, dict) else value!r}, not {LAYOUT!r}); delete it"
        )
    return Manifest(**{**value, "shards": [Shard(**shard) for shard in value["shards"]]})
