"""Short hashes that tell whether stored things still fit."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash of a tokenizer's vocabulary and chat template."""
    template = getattr(tokenizer, "chat_template", None)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return short_hash([vocabulary, template])


def short_hash(value: Any) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
