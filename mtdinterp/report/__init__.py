"""Interpretability reports: what is known of a checkpoint, what it means, and a page or Markdown
that says so."""

from mtdinterp.report.findings import Findings, collect
from mtdinterp.report.verdict import Verdict, judge
from mtdinterp.report.write import write_report

__all__ = ["Findings", "Verdict", "collect", "judge", "write_report"]
