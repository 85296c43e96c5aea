"""Histories: a round trip is exact, every change is noticed, every field has its type."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtdinterp.history_lines import (
    CHECK,
    MOST_ENTRIES,
    HistoryError,
    check_entry,
    format_history,
    parse_history,
)

NUMBER = st.none() | st.floats(-1e9, 1e9)
ENTRY = st.fixed_dictionaries({"kl": NUMBER, "loss": NUMBER, "branch": st.sampled_from(["direct"])})


@st.composite
def histories(draw):
    entries = draw(st.lists(ENTRY, max_size=5))
    return [{"step": 3 * place, **entry} for place, entry in enumerate(entries)]


@given(histories())
def test_a_round_trip_is_exact(history):
    assert parse_history(format_history(history)) == history


TWO = [{"step": 0, "kl": 0.25, "branch": "direct"}, {"step": 10, "kl": 0.125, "branch": None}]


def test_older_files_have_no_checksums():
    text = "".join(json.dumps(entry) + "\n" for entry in TWO)
    assert parse_history(text) == TWO


def test_a_flipped_bit_never_changes_a_value():
    content = format_history(TWO).encode()
    changed = 0
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            try:
                found = parse_history(damaged.decode())
            except (HistoryError, UnicodeDecodeError):
                continue
            changed += found != TWO
    assert changed == 0


def test_lines_that_are_removed_or_moved_are_noticed():
    three = [*TWO, {"step": 20, "kl": 0.1, "branch": None}]
    first, second, third = format_history(three).splitlines(keepends=True)
    for lines in ((second, third), (first, third), (second, first, third)):
        with pytest.raises(HistoryError, match="its checksum is wrong"):
            parse_history("".join(lines))
    assert parse_history(first + second) == TWO  # a run that was stopped earlier


def test_all_lines_have_a_checksum_or_none():
    first, second = format_history(TWO).splitlines()
    entry = json.loads(second)
    del entry[CHECK]
    with pytest.raises(HistoryError, match="its checksum is wrong"):
        parse_history(f"{first}\n{json.dumps(entry)}\n")


@pytest.mark.parametrize(
    "entry",
    [
        1,
        [],
        {},
        {"step": "x"},
        {"step": True},
        {"step": 1.5},
        {"step": -1},
        {"step": 10**400},
        {"step": 0, "kl": "text"},
        {"step": 0, "kl": True},
        {"step": 0, "kl": [1]},
        {"step": 0, "kl": 10**400},
        {"step": 0, "kl": float("nan")},
        {"step": 0, "branch": 1},
        {"step": 0, "branch": "x" * 201},
        {"step": 0, "other": {}},
    ],
)
def test_a_field_of_the_wrong_type_is_refused(entry):
    with pytest.raises(HistoryError, match="expected"):
        check_entry(entry)


def test_a_complete_entry_has_every_field():
    with pytest.raises(HistoryError, match="loss is missing"):
        check_entry({"step": 0}, complete=True)


def test_steps_increase_and_numbers_are_finite():
    with pytest.raises(HistoryError, match="increasing steps, got 0 after 0"):
        parse_history('{"step": 0}\n{"step": 0}\n')
    with pytest.raises(HistoryError, match=r"line 1: .*NaN"):
        parse_history('{"step": 0, "kl": NaN}\n')
    with pytest.raises(HistoryError, match="line 2: not valid JSON"):
        parse_history('{"step": 0}\n{"step"\n')


def test_a_history_has_a_bounded_number_of_lines():
    with pytest.raises(HistoryError, match="expected at most"):
        parse_history("{}\n" * (MOST_ENTRIES + 2))
