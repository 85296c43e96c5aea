"""Every method has one style, wherever it is drawn."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from mtdinterp import registry
from mtdinterp.style import STYLES, Style, derived_style, style_of


@pytest.fixture
def estimators(monkeypatch):
    """A registry of two estimators, one of which has a style of its own."""
    found = {
        "styled": SimpleNamespace(style=Style("#123456", "o", "-")),
        "unstyled": SimpleNamespace(style=None),
        "truth": SimpleNamespace(style=Style("#654321", "o", "-")),
    }
    monkeypatch.setattr(registry, "ESTIMATORS", found)


def test_the_table_comes_before_the_registry(estimators):
    assert style_of("truth") == STYLES["truth"]


def test_an_estimator_brings_its_own_style(estimators):
    assert style_of("styled") == Style("#123456", "o", "-")


@pytest.mark.parametrize("name", ["unstyled", "nobody registered this"])
def test_other_names_get_a_style_derived_from_the_name(estimators, name):
    assert style_of(name) == derived_style(name)


def test_derived_styles_differ_between_names_but_not_between_processes():
    names = [f"estimator_{number}" for number in range(20)]
    here = [derived_style(name) for name in names]
    assert len(set(here)) > 15
    code = f"from mtdinterp.style import *; print([tuple(derived_style(n)) for n in {names!r}])"
    there = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert there.strip() == str([tuple(style) for style in here])
