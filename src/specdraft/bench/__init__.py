"""Throughput of trained drafters against autoregressive decoding: ``specdraft bench``."""

from specdraft.bench.cells import Cell, Job, Measurement, measure, summary
from specdraft.bench.command import bench
from specdraft.bench.latency import percentiles

__all__ = ["Cell", "Job", "Measurement", "bench", "measure", "percentiles", "summary"]
