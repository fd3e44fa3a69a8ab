"""Drafters: block-parallel networks over target features."""

from specdraft.drafters.base import Drafter

__all__ = ["Drafter"]
