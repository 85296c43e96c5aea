"""The scales of small charts (`Facets`): numbers only, shared by `svg` and `pictures`."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from mtdinterp.pages.charts import Facets, Sample
from mtdinterp.pages.ranges import Range

REACH = 0.5
"""How far intervals may extend the axis, as a share of the range of everything else.

The interval of two runs is 12.7 standard errors wide on either side. An axis that shows all of it
would draw all means on top of each other."""
CONNECTED_STEP = 0.07
CATEGORY_STEP = 0.2
"""Largest distance between two samples at the same x, as a share of that between two x."""
CATEGORY_SPREAD = 0.6
"""Largest distance between the first and the last sample of a category."""
MOST_LETTERS = 16
"""Longer labels of ticks are cut."""


def scale_of(block: Facets) -> Callable[[float], float]:
    """From values to places on the y axis."""
    return math.log10 if block.logarithmic else float


def is_visible(block: Facets, value: float) -> bool:
    """Whether a value has a place on the y axis."""
    return math.isfinite(value) and (value > 0 or not block.logarithmic)


def value_axis(block: Facets) -> Range | None:
    """The y axis on its scale; None if nothing can be drawn."""
    scale = scale_of(block)
    inside = [scale(value) for value in _values(block) if is_visible(block, value)]
    if not inside:
        return None
    low = min(inside)
    high = max(inside)
    reach = REACH * (high - low)
    ends = [scale(end) for end in _interval_ends(block) if is_visible(block, end)]
    lowest = max(low - reach, min([low, *ends]))
    highest = min(high + reach, max([high, *ends]))
    if lowest == highest:
        return Range(lowest, highest).padded() if block.logarithmic else _around(lowest)
    return Range(lowest, highest).padded(0.06)


def _around(value: float) -> Range:
    """A range around a single value, in proportion to it."""
    half = 0.25 * abs(value) or 0.5
    return Range(value - half, value + half)


def _values(block: Facets) -> Iterator[float]:
    """The values of all dots, means and references."""
    for facet in block.facets:
        for sample in facet.samples:
            yield from (dot.value for dot in sample.dots)
            yield from (mean.value for mean in sample.means)
        for line in facet.references:
            yield from (y for _, y in line.points)


def _interval_ends(block: Facets) -> Iterator[float]:
    for facet in block.facets:
        for sample in facet.samples:
            for mean in sample.means:
                yield mean.low
                yield mean.high


def places(block: Facets) -> list[float]:
    """Every x at which something is drawn, in order."""
    found: set[float] = set()
    for facet in block.facets:
        for sample in facet.samples:
            found |= {dot.x for dot in sample.dots}
            found |= {mean.x for mean in sample.means}
        for line in facet.references:
            found |= {x for x, _ in line.points}
    return sorted(found | {x for x, _ in block.ticks})


def gap(block: Facets) -> float:
    """The smallest distance between two x; 1 if there is only one."""
    found = places(block)
    pairs = itertools.pairwise(found)
    return min([after - before for before, after in pairs], default=1.0)


def place_axis(block: Facets) -> Range:
    """The x axis, with room for samples that are drawn next to each other."""
    found = places(block) or [0.0]
    if not block.connected or len(found) == 1:
        return Range(found[0] - 0.5, found[-1] + 0.5)
    return Range(found[0], found[-1]).padded(0.06)


def all_samples(block: Facets) -> list[Sample]:
    """One sample per key and label, in the order in which they first appear."""
    found: dict[tuple[str, str], Sample] = {}
    for facet in block.facets:
        for sample in facet.samples:
            found.setdefault((sample.key, sample.label), sample)
    return list(found.values())


def offsets(block: Facets) -> dict[tuple[str, str], float]:
    """How far each sample is moved along x, by key and label, so that none hides another."""
    samples = all_samples(block)
    step = CONNECTED_STEP if block.connected else CATEGORY_STEP
    step = gap(block) * min(step, CATEGORY_SPREAD / max(1, len(samples)))
    middle = (len(samples) - 1) / 2
    return {
        (sample.key, sample.label): (number - middle) * step
        for number, sample in enumerate(samples)
    }


def cut(text: str, most: float) -> str:
    """A text of at most so many letters; a cut one ends in an ellipsis."""
    return text if len(text) <= most else text[: int(most) - 1] + "…"


def thinned(positions: Sequence[float], widths: Sequence[float]) -> list[int]:
    """The labels that can be shown without overlap, the first one always.

    Args:
        positions: where the middle of each label is, in order.
        widths: the width of each label with the space around it.

    Returns:
        Indices of the labels to show.
    """
    shown: list[int] = []
    end = -math.inf
    for index, (position, width) in enumerate(zip(positions, widths, strict=True)):
        if position - width / 2 >= end:
            shown.append(index)
            end = position + width / 2
    return shown
