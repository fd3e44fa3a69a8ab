"""Parts of a user."""

from my_drafting.correctors import RepeatBias
from my_drafting.weightings import FirstSlots

__all__ = ["FirstSlots", "RepeatBias"]
