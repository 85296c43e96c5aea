"""Benchmarks: times are measured interleaved in one run, because machines are shared and noisy."""

from mtdinterp.bench.measure import Measurement
from mtdinterp.bench.suite import GROUPS, run_group

__all__ = ["GROUPS", "Measurement", "run_group"]
