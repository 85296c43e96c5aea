"""Grid files: which combinations they expand to, and that every other text is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtdinterp.sweep.grid import (
    MOST_CELLS,
    Grid,
    GridError,
    expand,
    find_grid,
    read_grid,
    shipped_grids,
)
from mtdinterp.sweep.grid_values import parse, parse_json


def grid_of(text: str) -> Grid:
    """The grid of a YAML text."""
    return expand(parse(text.encode()))


def settings_of(text: str) -> list[dict[str, Any]]:
    """The settings of all combinations of a YAML text."""
    return [combination.settings for combination in grid_of(text).combinations]


def parents_of(text: str) -> list[int | None]:
    """The parents of all combinations of a YAML text."""
    return [combination.parent for combination in grid_of(text).combinations]


def refusal(text: str) -> str:
    """The error that a YAML text is refused with."""
    with pytest.raises(GridError) as caught:
        grid_of(text)
    return str(caught.value)


def test_the_last_setting_varies_fastest() -> None:
    found = settings_of("seed: [0, 1]\nlength: [16, 32]\norder: 2")
    assert [(entry["seed"], entry["length"]) for entry in found] == [
        (0, 16),
        (0, 32),
        (1, 16),
        (1, 32),
    ]
    assert all(entry["order"] == 2 for entry in found)
    assert list(found[0]) == ["seed", "length", "order"]


def test_only_settings_that_differ_are_varied() -> None:
    assert grid_of("seed: [0, 1]\norder: 2\nlength: [16]").varied == ("seed",)
    assert grid_of("grids: [{order: 2}, {order: 2, seed: 1}]").varied == ("seed",)


def test_zipped_lists_vary_together() -> None:
    found = settings_of("zip: {length: [16, 32], steps: [5, 9]}\nseed: [0, 1]")
    assert [tuple(entry.values()) for entry in found] == [
        (16, 5, 0),
        (16, 5, 1),
        (32, 9, 0),
        (32, 9, 1),
    ]


def test_two_groups_of_zipped_lists_are_combined() -> None:
    found = settings_of("zip: [{a: [1, 2], b: [3, 4]}, {c: [5, 6]}]")
    assert [tuple(entry.values()) for entry in found] == [
        (1, 3, 5),
        (1, 3, 6),
        (2, 4, 5),
        (2, 4, 6),
    ]


def test_excluded_combinations_are_left_out() -> None:
    text = "a: [1, 2, 3]\nb: [1, 2]\nexclude: [{a: [1, 2], b: 1}, {a: 3, b: 2}]"
    found = settings_of(text)
    assert [tuple(entry.values()) for entry in found] == [(1, 2), (2, 2), (3, 1)]
    assert settings_of("a: [1, 2]\nexclude: {a: 1}") == [{"a": 2}]
    assert settings_of("a: [1, 2]\nexclude:") == [{"a": 1}, {"a": 2}]


def test_a_value_that_is_a_list_can_be_excluded() -> None:
    assert settings_of("a: [[1, 2], [3, 4]]\nexclude: {a: [3, 4]}") == [{"a": [1, 2]}]


def test_each_cell_starts_from_the_one_before_along_the_chain() -> None:
    text = "seed: [0, 1]\nlength: [16, 32, 64]\nfrom: length"
    assert parents_of(text) == [None, 0, 1, None, 3, 4]
    # The chain may be any axis: here, neighbours in the chain are not neighbours in the grid.
    assert parents_of("length: [16, 32]\nseed: [0, 1]\nfrom: length") == [None, None, 0, 1]


def test_a_chain_skips_excluded_cells() -> None:
    text = "seed: [0, 1]\nlength: [16, 32, 64]\nfrom: length\nexclude: {seed: 0, length: 32}"
    assert parents_of(text) == [None, 0, None, 2, 3]
    first = "length: [16, 32]\nfrom: length\nexclude: {length: 16}"
    assert parents_of(first) == [None]


def test_a_chain_can_run_along_zipped_lists() -> None:
    text = "zip: {length: [16, 32], steps: [null, 5]}\nfrom: length"
    assert parents_of(text) == [None, 0]
    assert settings_of(text)[0] == {"length": 16, "steps": None}


def test_grids_share_the_settings_next_to_them() -> None:
    text = "order: 2\nseed: [0, 1]\ngrids:\n - length: 16\n - {length: 32, seed: 7}"
    assert settings_of(text) == [
        {"order": 2, "seed": 0, "length": 16},
        {"order": 2, "seed": 1, "length": 16},
        {"order": 2, "seed": 7, "length": 32},
    ]


def test_parents_stay_within_their_own_grid() -> None:
    text = "from: length\ngrids:\n - {seed: 0, length: [16, 32]}\n - {seed: 1, length: [16, 32]}"
    assert parents_of(text) == [None, 0, None, 2]


def test_common_zip_and_exclude_are_joined_with_those_of_a_grid() -> None:
    text = "zip: {a: [1, 2]}\nexclude: {a: 1}\ngrids:\n - {zip: {b: [3, 4]}, exclude: {b: 3}}"
    assert settings_of(text) == [{"a": 2, "b": 4}]


def test_an_alias_repeats_a_value() -> None:
    assert settings_of("a: &x [1, 2]\nb: *x") == [
        {"a": 1, "b": 1},
        {"a": 1, "b": 2},
        {"a": 2, "b": 1},
        {"a": 2, "b": 2},
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-2", 0.01),
        ("5E3", 5000.0),
        ("-1.5e+3", -1500.0),
        (".5e1", 5.0),
        ("'1e-2'", "1e-2"),
        ("1e2x", "1e2x"),
        ("0.01", 0.01),
        ("null", None),
        ("~", None),
        ("true", True),
    ],
)
def test_values_have_the_expected_type(text: str, value: Any) -> None:
    (found,) = settings_of(f"a: {text}")
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected settings by name"),
        ("- 1", "expected settings by name"),
        ("just a text", "expected settings by name"),
        ("title: 3\na: 1", "title: expected a text"),
        ("a: 1\na: 2", "'a' is given twice"),
        ("grids: [{a: 1, a: 2}]", "'a' is given twice"),
        ("1: 2", "expected names of settings as keys, got 1"),
        ("on: 2", "expected names of settings as keys, got True"),
        ("? [a]\n: 2", "expected names of settings as keys"),
        ("<<: {a: 1}", "<< is not supported"),
        ("a: [1", "not valid YAML"),
        ("a: *x", "not valid YAML"),
        ("a: &x [*x]", "not valid YAML"),
        ("a: !!python/name:os.system", "not valid YAML"),
        ("a: !!bool perhaps", "not valid YAML"),
        ("a: !!int ''", "not valid YAML"),
        ("a: !!timestamp never", "not valid YAML"),
        ("a: 2001-99-01", "not valid YAML"),
        ("[" * 3000, "nested too deeply"),
        ("a: []", "a: expected at least one value"),
        ("a: {b: 1}", "a: expected numbers, texts, true or false"),
        ("a: [[[1]]]", "a: expected numbers, texts, true or false"),
        ("a: 2001-01-01", "a: expected numbers, texts, true or false"),
        ("grids: 3", "grids: expected a list of grids"),
        ("grids: []", "grids: expected a list of grids"),
        ("grids: [3]", "grids: expected settings by name"),
        ("grids: [{title: a}]", "title belongs at the top"),
        ("grids: [{grids: []}]", "grids belongs at the top"),
        ("zip: 3", "zip: expected lists of values by name"),
        ("zip: {}", "zip: expected lists of values by name"),
        ("zip: {a: [1, 2], b: [1]}", "but a has 2, b has 1"),
        ("zip: [{a: [1, 2]}, {a: [3, 4]}]", "zip: a is given twice"),
        ("zip: {a: [1, 2]}\na: 1", "a is given both in zip and outside of it"),
        ("a: 1\nexclude: 5", "exclude: expected a list of settings by name"),
        ("a: 1\nexclude: text", "exclude: expected a list of settings by name"),
        ("a: 1\nexclude: [{}]", "exclude: expected a list of settings by name"),
        ("a: 1\nexclude: {b: 1}", "exclude: b is not a setting of this grid"),
        ("a: [1, 2]\nexclude: {a: [1, 2]}", "every combination is excluded"),
        ("a: 1\nfrom: a", "from: expected a setting with several values, got 'a'"),
        ("a: [1, 2]\nfrom: b", "from: expected a setting with several values, got 'b'"),
        ("a: [1, 2]\nfrom: [a]", "from: expected a setting with several values"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    assert words in refusal(text)


def test_too_many_cells_are_refused_before_they_are_made() -> None:
    values = list(range(400))
    text = f"a: {values}\nb: {values}\nc: {values}\nd: {values}"
    assert f"at most {MOST_CELLS:,} cells" in refusal(text)
    several = f"grids: {[{'a': values, 'b': values[:200]}] * 2}"
    assert f"at most {MOST_CELLS:,} cells" in refusal(several)


def test_nested_aliases_do_not_fill_the_memory() -> None:
    lines = ["x0: &x0 [a, a, a, a, a, a, a, a, a, a]"]
    for number in range(1, 30):
        same = ", ".join([f"*x{number - 1}"] * 10)
        lines.append(f"x{number}: &x{number} [{same}]")
    assert len(refusal("\n".join(lines))) < 200


def test_an_error_names_the_file_and_is_one_printable_line(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_bytes(b'a: [1, 2]\nfrom: "\\e[2J\\n"\n')
    with pytest.raises(GridError) as caught:
        read_grid(path)
    assert str(caught.value).startswith(f"{path}: from: ")
    assert str(caught.value).isprintable()


def test_json_grids_are_read_as_json(tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({"a": [1e-2, None], "b": "x/y"}, indent="\t"))
    found = [combination.settings for combination in read_grid(path).combinations]
    assert found == [{"a": 0.01, "b": "x/y"}, {"a": None, "b": "x/y"}]
    path.write_text('{"a": 1, "a": 2}')
    with pytest.raises(GridError, match="'a' is given twice"):
        read_grid(path)
    path.write_text("a: 1")
    with pytest.raises(GridError, match="not valid JSON"):
        read_grid(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GridError, match=r"ends in \.yaml"):
        read_grid(tmp_path / "grid.txt")
    with pytest.raises(GridError, match="cannot be read"):
        read_grid(tmp_path / "grid.yaml")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (10**6 + 1))
    with pytest.raises(GridError, match="expected at most"):
        read_grid(large)


def test_a_file_takes_precedence_over_a_shipped_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_grid("smoke") == shipped_grids()["smoke"]
    (tmp_path / "smoke").write_text("a: 1")
    assert find_grid("smoke") == Path("smoke")
    with pytest.raises(GridError, match="expected one of lengths, paper, "):
        find_grid("smok")


KEYS = st.sampled_from(["a", "b", "length", "zip", "exclude", "from", "grids", "title", "1", "~"])
SCALARS = st.sampled_from(
    ["1", "2.5", "1e-2", "x", "null", "true", "*x", "&x 1", "!!int y", "!!set {a}", "'"]
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def yaml_like(draw: st.DrawFn) -> bytes:
    """Texts with the marks of YAML in places where they mean something."""
    value = st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
            | st.tuples(KEYS, inner).map(lambda pair: f"{{{pair[0]}: {pair[1]}}}")
        ),
        max_leaves=6,
    )
    lines = draw(st.lists(st.tuples(KEYS, value), max_size=6))
    return "\n".join(f"{key}: {text}" for key, text in lines).encode()


def refused_or_expanded(make: Callable[[], Grid]) -> Grid | str:
    """The grid, or the sentence that refuses it; any other error is a failure."""
    try:
        return make()
    except GridError as error:
        return str(error)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | yaml_like())
@example(b"\xff\xfe\x00")
@example("\ud800".encode("utf-16", "surrogatepass"))
def test_any_text_gives_a_grid_or_a_grid_error(content: bytes) -> None:
    check_invariants(refused_or_expanded(lambda: expand(parse(content))))
    check_invariants(refused_or_expanded(lambda: expand(parse_json(content))))


@given(st.dictionaries(KEYS, PLAIN, max_size=5))
def test_any_contents_give_a_grid_or_a_grid_error(contents: dict[str, Any]) -> None:
    check_invariants(refused_or_expanded(lambda: expand(contents)))


def check_invariants(grid: Grid | str) -> None:
    """What holds for every grid, and for every refusal."""
    if isinstance(grid, str):
        assert grid.isprintable()
        return
    assert grid.combinations
    for number, combination in enumerate(grid.combinations):
        assert combination.parent is None or combination.parent < number
    named = {key for combination in grid.combinations for key in combination.settings}
    assert set(grid.varied) <= named
