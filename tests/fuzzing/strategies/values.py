"""Odd values, damages of bytes, and edits of nested values, shared by all strategies."""

from typing import Any

from hypothesis import strategies as st

from fuzzing import canaries

Strategy = st.SearchStrategy[Any]

DEEP = {"$text": [["[", 100_000], ["]", 100_000]]}
DEEP_OBJECT = {"$text": [['{"a":', 5_000], ["1", 1], ["}", 5_000]]}
HUGE_DIGITS = {"$text": [["9", 5_000]]}
LONG_TEXT = {"$text": [['"', 1], ["x", 100_000], ['"', 1]]}
LONG_LIST = {"$text": [["[", 1], ["0,", 200_000], ["0]", 1]]}
NUMBERS = (
    *(0, -1, 1, 2, 3, 101, 2**31, 2**31 - 1, 2**32, 2**63, 2**64, 10**30, -(2**63), 10**400),
    *(0.0, -0.0, 0.5, 1.5, 1e-300, 5e-324, 1e300, 1e308, -1e300),
)
SPECIAL = ({"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"})
TEXTS = (
    *("", "x", "1", "mtd", "lag-specific", "standard", "disentangled", "../../etc/passwd", "cpu"),
    *(
        "cuda",
        "meta",
        "nan",
        "\x00",
        "\x1b[2J",
        "\n",
        "\u202e",
        "\ud800",
        "é" * 300,
        "tied",
        "null",
    ),
    *("[1]", "{}", "__class__", "%s%n{0}", canaries.MODULE),
)
PLAIN = (None, True, False, [], {}, [[]], [1, "x"], {"a": 1}, [None], [[1, 2], [3]])
ODD = st.sampled_from((*NUMBERS, *SPECIAL, *TEXTS, *PLAIN))
RAW = st.sampled_from((DEEP, DEEP_OBJECT, HUGE_DIGITS, LONG_TEXT, LONG_LIST))
RANDOM = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
JSON_VALUES = st.one_of(ODD, ODD, RANDOM, RAW)

FLIP = st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(0, 7))
TRUNCATE = st.tuples(st.just("truncate"), st.integers(0, 10**6))
DELETE = st.tuples(st.just("delete"), st.integers(0, 10**6), st.integers(1, 200))
COPY = st.tuples(st.just("copy"), st.integers(0, 10**6), st.integers(1, 300), st.integers(0, 10**6))
PIECES = ("\x00", "\xff", "[", "{", "}", '"', ",", '"schema":1,', "NaN", "\n", "0", "-", "\\u0000")
INSERT = st.tuples(
    st.just("insert"),
    st.integers(0, 10**6),
    st.sampled_from(PIECES),
    st.sampled_from((1, 1, 2, 1000, 100_000)),
)
REPLACE = st.tuples(
    st.just("replace"), st.text(max_size=40) | st.sampled_from(("", "null", "[]", "{}", "PK\3\4"))
)
DAMAGES = st.lists(st.one_of(FLIP, FLIP, TRUNCATE, DELETE, COPY, INSERT, REPLACE), max_size=3)
FEW_DAMAGES = st.one_of(st.just([]), st.just([]), st.just([]), DAMAGES)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[list[Any]]:
    """The paths to all entries of nested values, as `materials` outlines them."""
    found = [list(path)]
    if isinstance(value, dict) and "$pairs" in value:
        children = value["$pairs"]
    elif isinstance(value, dict) and "$tensor" not in value:
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    else:
        children = []
    for key, entry in children:
        found += paths_in(entry, (*path, key))
    return found


def edits_of(outline: Any, values: Strategy, most: int = 3) -> Strategy:
    """Edits of nested values.

    Args:
        outline: the values that are edited.
        values: what is put in place of an entry.
        most: number of edits.

    Returns:
        A strategy for lists of edits.
    """
    path = st.sampled_from(paths_in(outline))
    added = st.builds(lambda start, name: [*start, name], path, st.sampled_from(TEXTS))
    one = st.one_of(
        st.tuples(st.just("set"), path, values),
        st.tuples(st.just("set"), path, values),
        st.tuples(st.just("set"), added, values),
        st.tuples(st.just("drop"), path),
        st.tuples(st.just("rename"), path, st.sampled_from(TEXTS)),
        st.tuples(st.just("swap"), path, path),
    )
    return st.lists(one, min_size=0, max_size=most)
