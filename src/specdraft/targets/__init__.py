"""The frozen target: loading, features for training, cached forwards with rollback; alone in knowing transformers."""

from specdraft.targets.config import TargetConfig
from specdraft.targets.head import FrozenHead
from specdraft.targets.hf import HFTarget
from specdraft.targets.load import load_model, load_target
from specdraft.targets.placement import load_device, loading_onto

__all__ = ["FrozenHead", "HFTarget", "TargetConfig", "load_device", "load_model", "load_target", "loading_onto"]
