"""The fastest block size for a workload and a concurrency, on the machine at hand: ``specdraft tune``."""

from specdraft.tune.command import tune
from specdraft.tune.prediction import Assessment, assess, best_blocks, best_fixed, predicted_grid
from specdraft.tune.search import unimodal_best

__all__ = ["Assessment", "assess", "best_blocks", "best_fixed", "predicted_grid", "tune", "unimodal_best"]
