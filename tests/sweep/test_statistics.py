"""The statistics of a sweep's page: axes, groups, means and their intervals."""

import math
from pathlib import Path

import pytest

from mtdinterp.sweep.directory import Entry, Sweep
from mtdinterp.sweep.statistics import (
    choose_axes,
    estimate,
    grouped,
    is_number,
    key_of,
    number,
    ranked,
    shown,
    student_factor,
    values_of,
)


def sweep_of(*settings):
    entries = tuple(Entry(f"c{place}", None, found, 1.0) for place, found in enumerate(settings))
    names = dict.fromkeys(name for found in settings for name in found)
    varied = [name for name in names if len({str(found.get(name)) for found in settings}) > 1]
    return Sweep(Path("nowhere"), "", tuple(varied), entries)


def grid(**values):
    """All combinations."""
    found = [{}]
    for name, options in values.items():
        found = [{**before, name: value} for before in found for value in options]
    return sweep_of(*found)


@pytest.mark.parametrize(
    ("freedom", "factor"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (10**6, 1.96)]
)
def test_students_factors_are_those_of_the_tables(freedom, factor):
    assert student_factor(freedom) == pytest.approx(factor, abs=1e-4)


def test_the_mean_of_several_runs_has_students_interval():
    found = estimate([1.0, 2.0, 3.0], stderr=99.0)
    half = 4.302653 * 1.0 / math.sqrt(3)
    assert (found.mean, found.count) == (2.0, 3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))


def test_equal_runs_have_an_interval_of_no_width():
    found = estimate([2.0, 2.0])
    assert found.low == found.mean == found.high == 2.0


def test_a_single_run_has_its_own_standard_error_or_none():
    found = estimate([2.0], stderr=0.1)
    assert (found.low, found.high) == pytest.approx((2 - 0.195996, 2 + 0.195996))
    assert math.isnan(estimate([2.0]).low)


def test_numbers_come_before_texts_and_many_values_before_few():
    sweep = grid(
        architecture=["a", "b", "c", "d"], order=[3, 4], length=[16, 32, 64], seed=[0, 1, 2, 3, 4]
    )
    assert ranked(sweep) == ["length", "order", "architecture"]
    axes = choose_axes(sweep)
    assert (axes.x, axes.facets, axes.lines, axes.together) == (
        "length",
        "order",
        ("architecture",),
        (),
    )


def test_axes_that_are_asked_for_push_the_others_aside():
    sweep = grid(order=[3, 4], length=[16, 32, 64], architecture=["a", "b"], seed=[0, 1])
    axes = choose_axes(sweep, x="architecture")
    assert (axes.x, axes.facets, axes.lines) == ("architecture", "length", ("order",))
    axes = choose_axes(sweep, facets="length")
    assert (axes.x, axes.facets, axes.lines) == ("order", "length", ("architecture",))
    axes = choose_axes(sweep, x="seed", facets="order")
    assert (axes.x, axes.facets, axes.lines) == ("seed", "order", ("length", "architecture"))


def test_what_varies_together_needs_no_axis():
    sweep = sweep_of(
        *(
            {"length": length, "steps": 100 * length, "order": order}
            for length in (16, 32)
            for order in (3, 4)
        )
    )
    axes = choose_axes(sweep)
    assert (axes.x, axes.facets, axes.lines, axes.together) == ("length", "order", (), ("steps",))


def test_few_varied_settings_leave_axes_empty():
    assert choose_axes(grid(length=[16, 32])).facets is None
    assert choose_axes(grid(length=[16], seed=[0, 1])).x is None
    nothing = choose_axes(grid(length=[16]))
    assert (nothing.x, nothing.facets, nothing.lines) == (None, None, ())


@pytest.mark.parametrize("flag", ["x", "facets"])
def test_an_unknown_setting_is_answered_with_the_known_ones_and_the_nearest(flag):
    sweep = grid(length=[16, 32], order=[2])
    with pytest.raises(ValueError, match=rf"^{flag}: expected one of length, order; got 'lenght'"):
        choose_axes(sweep, **{flag: "lenght"})
    with pytest.raises(ValueError, match="did you mean 'length'"):
        choose_axes(sweep, **{flag: "lenght"})


def test_one_setting_cannot_be_both_axes():
    with pytest.raises(ValueError, match="expected another setting than that of x"):
        choose_axes(grid(length=[16, 32]), x="length", facets="length")


def test_groups_are_cells_that_differ_in_their_seeds():
    sweep = grid(
        length=[16, 32], architecture=["a", "b"], order=[3, 4], seed=[0, 1], task_seed=[5, 6]
    )
    groups = grouped(sweep.entries, choose_axes(sweep))
    assert [len(group.entries) for group in groups] == 8 * [4]
    for group in groups:
        for entry in group.entries:
            assert (entry.settings["length"], entry.settings["order"]) == (group.x, group.facet)
            assert (entry.settings["architecture"],) == group.line


def test_values_are_told_apart_by_their_type():
    sweep = sweep_of({"a": 1}, {"a": True}, {"a": [1]}, {"a": "1"}, {"a": None}, {})
    assert [shown(value) for value in values_of("a", sweep.entries)] == [
        "1",
        "yes",
        "1",
        "1",
        "not set",
    ]
    assert values_of("a", sweep_of({"a": 4}, {"a": 0.5}, {"a": 3}).entries) == [0.5, 3, 4]
    assert key_of({"b": 1, "a": 2}) == key_of({"a": 2, "b": 1})


def test_what_is_a_number():
    assert [number(value) for value in (True, 2, 0.5)] == [1.0, 2.0, 0.5]
    strange = (None, "1", math.nan, math.inf, 10**400, [1])
    assert [number(value) for value in strange] == len(strange) * [None]
    assert not is_number(True)


def test_text_from_files_is_made_printable_and_short():
    assert shown("a\x1b[31mb") == r"a\x1b[31mb"
    assert len(shown("x" * 10**6)) == len(shown(["x" * 10**6])) == 200
