"""Docstrings name objects as Sphinx has them, with a role before; pages show the name alone."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:class|func|meth|attr|data|mod):<code>~?([\w.]+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with the content of every page."""
    return _ROLE.sub(lambda match: f"<code>{match[1].removeprefix('specdraft.')}</code>", html)
