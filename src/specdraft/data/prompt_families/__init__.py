"""Word banks and sentence templates of the embedded prompts, one module per family.

Each module has ``train() -> list[str]`` and ``heldout() -> list[str]``. Fillers named ``RESERVED_*`` and whole
held-out sentences never reach a training prompt.
"""
