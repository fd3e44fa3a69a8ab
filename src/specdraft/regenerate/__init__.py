"""Answers of the target to prompts, by the built-in engine or by a server."""

from specdraft.regenerate.command import regenerate

__all__ = ["regenerate"]
