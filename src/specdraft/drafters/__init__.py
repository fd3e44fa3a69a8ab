"""Drafters: block-parallel networks over target features."""

from specdraft.drafters.automatic_attention import AutomaticAttention
from specdraft.drafters.base import Drafter
from specdraft.drafters.block_attention import BlockAttention, DenseAttention
from specdraft.drafters.block_layout import BlockLayout
from specdraft.drafters.dflash import DFlash
from specdraft.drafters.flex_attention import FlexAttention
from specdraft.drafters.split_attention import SplitAttention

__all__ = [
    "AutomaticAttention",
    "BlockAttention",
    "BlockLayout",
    "DFlash",
    "DenseAttention",
    "Drafter",
    "FlexAttention",
    "SplitAttention",
]
