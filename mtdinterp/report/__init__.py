"""Interpretability reports: `collect` measures, `judge` decides, `write_report` shows both."""

from mtdinterp.report.collect import collect
from mtdinterp.report.findings import Findings
from mtdinterp.report.judge import Verdict, judge
from mtdinterp.report.write import write_report

__all__ = ["Findings", "Verdict", "collect", "judge", "write_report"]
