"""Charts as inline SVG: no script, selectable text, and a tooltip on every mark.

Charts are drawn narrow, so that their text stays readable on a phone; a wide page puts two side by
side. One file per kind of chart; `elements` has the parts that they share.
"""

from mtdinterp.pages.svg.bars import bars
from mtdinterp.pages.svg.facets import MOST_WIDE, facets, legend
from mtdinterp.pages.svg.groups import groups
from mtdinterp.pages.svg.intervals import intervals
from mtdinterp.pages.svg.lines import lines
from mtdinterp.pages.svg.matrix import matrix

__all__ = ["MOST_WIDE", "bars", "facets", "groups", "intervals", "legend", "lines", "matrix"]
