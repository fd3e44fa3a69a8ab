"""Training data: rows, chat templates, loss masks, batches that resume exactly, and cached target features."""

from __future__ import annotations

from specdraft.data.batching import Batching, Bucketed, Packed, Padded
from specdraft.data.chat import Encoded, Unusable, encode_conversation
from specdraft.data.datamodule import ChatDataModule, HeldOutPrompt
from specdraft.data.features import CachedFeatures, FeatureSource, OnlineFeatures
from specdraft.data.rows import Row, parse_row, read_rows

__all__ = [
    "Batching",
    "Bucketed",
    "CachedFeatures",
    "ChatDataModule",
    "Encoded",
    "FeatureSource",
    "HeldOutPrompt",
    "OnlineFeatures",
    "Packed",
    "Padded",
    "Row",
    "Unusable",
    "encode_conversation",
    "parse_row",
    "read_rows",
]
