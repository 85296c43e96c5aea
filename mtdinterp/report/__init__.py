"""Interpretability reports: what is known of a checkpoint, what it means, and a page that says so."""

from mtdinterp.report.collect import Findings, collect
from mtdinterp.report.page import render
from mtdinterp.report.verdict import Verdict, judge
from mtdinterp.report.write import write_report

__all__ = ["Findings", "Verdict", "collect", "judge", "render", "write_report"]
