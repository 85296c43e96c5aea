"""Numbers as text: no sign without a size, no size without a meaning."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtdinterp.formatting import (
    MISSING,
    counted,
    explained_text,
    fixed,
    listed,
    measured,
    r2_text,
    share_text,
    with_error,
)

NUMBERS = st.floats(-1e6, 1e6)


@given(NUMBERS, st.integers(0, 5))
def test_a_rounded_number_is_near_and_zero_has_no_sign(value, digits):
    text = fixed(value, digits)
    assert float(text) == pytest.approx(value, abs=0.51 * 10**-digits)
    if float(text) == 0:
        assert not text.startswith("-")


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_share_is_at_least_0_or_said_to_be_less(value):
    text = share_text(value)
    if not math.isfinite(value):
        assert text == MISSING
    elif value < -0.001:
        assert text == "less than 0%"
    else:
        assert text.endswith("%")
        assert "-" not in text


def test_shares_r2_and_errors():
    assert share_text(0.959) == "95.9%"
    assert share_text(-124.773) == "less than 0%"
    assert share_text(-1e-9, 0) == "0%"
    assert explained_text(-0.2) == "nothing"
    assert explained_text(-1e-9) == "0.0%"
    assert explained_text(math.nan) == MISSING
    assert r2_text(-6e13) == "below -1"
    assert r2_text(-0.001) == "0.00"
    assert r2_text(0.9301, 3) == "0.930"
    assert with_error(-0.001, 0.02) == "0.00 ± 0.02"
    assert with_error(1.5, math.nan) == "1.50"
    assert fixed(math.inf) == r2_text(math.nan) == MISSING


def test_digits_follow_the_standard_error():
    assert measured(3.14229, 0.48) == "3.14"
    assert measured(3.14229, 4.8) == "3.1"
    assert measured(0.05039, 0.0006) == "0.05039"
    assert measured(3.8712, 1e-9) == "3.871"
    assert measured(3.8712) == measured(3.8712, 0.0) == "3.87"
    assert measured(0.0) == "0.00000"
    assert measured(1234.6) == "1235"
    assert measured(math.nan, 0.1) == MISSING


def test_one_is_singular():
    assert counted(1, "sequence") == "1 sequence"
    assert counted(0, "sequence") == "0 sequences"
    assert counted(2, "sequence") == "2 sequences"


def test_a_list_in_a_sentence():
    assert listed(["weights"]) == "weights"
    assert listed(["weights", "output"]) == "weights and output"
    assert listed(["weights", "attention", "output"]) == "weights, attention and output"
