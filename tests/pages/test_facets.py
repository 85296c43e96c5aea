"""Small charts with common axes: everything stands where its numbers say."""

import re

import pytest

from mtdinterp.pages import scales
from mtdinterp.pages.blocks import Document, Dot, Facet, Facets, Line, Mean, Sample, Section
from mtdinterp.pages.page import render
from mtdinterp.pages.pictures import png


def block(*samples, references=(), **settings):
    ticks = ((0.0, "first"), (1.0, "second"))
    return Facets("title", (Facet("chart", samples, references),), "x", "y", ticks, **settings)


def sample(*means, key="model", label="models", dots=()):
    return Sample(key, label, tuple(dots), tuple(means))


def shown(facets):
    return render(Document("d", (Section("s", (facets,)),)))


def mark(html, tip):
    """Where a round mark with a tooltip stands."""
    found = re.search(rf'cx="([\d.]+)" cy="([\d.]+)"[^>]*><title>{tip}', html)
    assert found
    return float(found[1]), float(found[2])


def test_marks_of_equal_value_are_level_and_larger_ones_are_higher():
    html = shown(
        block(sample(Mean(0.0, 1.0, 0.5, 1.5, "low"), Mean(1.0, 2.0, 1.5, 2.5, "high"))),
    )
    low, high = mark(html, "low: 1 "), mark(html, "high: 2 ")
    assert low[0] < high[0]
    assert low[1] > high[1]


def test_charts_have_common_axes():
    small = Facet("small", (sample(Mean(0.0, 1.0, 1.0, 1.0, "one")),))
    large = Facet("large", (sample(Mean(0.0, 1.0, 1.0, 1.0, "other"), Mean(1.0, 9.0, 9, 9, "")),))
    facets = Facets("title", (small, large), "x", "y", ((0.0, "0"), (1.0, "1")))
    html = shown(facets)
    assert mark(html, "one") == mark(html, "other")
    assert html.count('class="legend"') == 1


def test_an_interval_that_is_much_wider_than_the_rest_is_cut_off():
    wide = Mean(0.0, 1.0, -99.0, 101.0, "wide")
    axis = scales.value_axis(block(sample(wide, Mean(1.0, 2.0, 1.9, 2.1, "narrow"))))
    assert axis
    assert -1 < axis.low < 1
    assert 2.1 < axis.high < 4
    html = shown(block(sample(wide, Mean(1.0, 2.0, 1.9, 2.1, "narrow"))))
    assert "wide: 1 (-99 to 101)" in html
    bars = re.findall(r'<path d="(M[^"]+)"[^>]*stroke-opacity', html)
    assert [bar.count("h6") for bar in bars] == [0, 2]  # caps are only where the end is shown


def test_samples_at_the_same_x_do_not_hide_each_other():
    means = (Mean(0.0, 1.0, 0.9, 1.1, "one"), Mean(1.0, 1.0, 0.9, 1.1, "two"))
    other = (Mean(0.0, 1.0, 0.9, 1.1, "three"), Mean(1.0, 1.0, 0.9, 1.1, "four"))
    two = block(sample(*means), sample(*other, label="others", key="series_6"))
    html = shown(two)
    assert mark(html, "three")[0] - mark(html, "one")[0] > 5
    assert list(scales.offsets(two).values()) == pytest.approx([-0.035, 0.035])


def test_many_samples_of_a_category_stay_within_it():
    many = block(
        *(sample(Mean(0.0, 1.0, 1, 1, ""), label=str(number)) for number in range(20)),
        connected=False,
    )
    moved = list(scales.offsets(many).values())
    assert max(moved) - min(moved) < 0.6
    assert scales.place_axis(many) == (-0.5, 1.5)


def test_values_without_a_logarithm_are_left_out():
    means = (Mean(0.0, 0.001, -1.0, 0.01, "small"), Mean(1.0, 0.0, 0, 0, "zero"))
    facets = block(sample(*means, Mean(1.0, 10.0, 5, 20, "large")), logarithmic=True)
    html = shown(facets)
    assert "zero: 0" not in html
    assert mark(html, "small: ")[1] > mark(html, "large: ")[1]
    assert "y (logarithmic)" in html
    assert png(facets).startswith(b"\x89PNG")


def test_a_reference_is_a_line_over_numbers_and_a_dash_at_each_category():
    line = Line("one_step", "reference", ((0.0, 1.0), (1.0, 2.0)))
    mean = sample(Mean(0.0, 1.5, 1.4, 1.6, "mean"))
    connected = shown(block(mean, references=(line,)))
    assert re.search(r"<polyline[^>]*><title>reference", connected)
    categories = shown(block(mean, references=(line,), connected=False))
    assert len(re.findall(r"<path[^>]*><title>reference: ", categories)) == 2


def test_labels_that_do_not_fit_are_slanted_or_left_out():
    names = tuple((float(number), f"a-rather-long-category-{number}") for number in range(8))
    mean = sample(Mean(0.0, 1.0, 0.9, 1.1, ""))
    facets = (Facet("", (mean,)),)
    slanted = shown(Facets("t", facets, "x", "y", names, connected=False))
    assert slanted.count("rotate(-45)") == 8
    assert "a-rather-long-category" not in slanted  # cut
    numbers = shown(Facets("t", facets, "x", "y", names))
    assert "rotate(-45)" not in numbers
    assert 0 < numbers.count("a-rather-long-c…") < 8


def test_labels_are_thinned_to_those_that_do_not_overlap():
    assert scales.thinned([0, 10, 20, 30], [5, 5, 5, 5]) == [0, 1, 2, 3]
    assert scales.thinned([0, 10, 20, 30], [15, 15, 15, 15]) == [0, 2]
    assert scales.thinned([], []) == []


def test_a_dot_and_a_mean_link_to_their_files():
    dots = (Dot(0.0, 1.0, "first run", "cells/a b/report.html"), Dot(0.0, 2.0, "second run"))
    html = shown(block(sample(Mean(0.0, 1.5, 1, 2, "mean", "m.html"), dots=dots)))
    assert re.search(r'<a href="cells/a%20b/report.html"><circle[^>]*><title>first run: 1<', html)
    assert re.search(r'<a href="m.html"><circle[^>]*><title>mean: 1.5 ', html)
    assert len(re.findall('<a href="[^#]', html)) == 2


def test_every_marker_has_its_shape():
    keys = [f"series_{number}" for number in range(1, 9)]
    facets = block(
        *(sample(Mean(0.0, 1.0, 1, 1, key), key=key, label=key) for key in keys),
    )
    html = shown(facets)
    assert all(f"<title>{key}: 1" in html for key in keys)
    shapes = re.findall(r'path transform[^>]* d="([^"]*)"', html)
    assert len(set(shapes)) == 4
