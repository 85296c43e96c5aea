"""Transition probabilities from files: what is read is what was written, or one sentence."""

import json
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mtdinterp import matrix_files
from mtdinterp.tasks import MTDTask, read_transition

GOOD = np.array([[0.25, 0.75], [0.5, 0.5]])
ROUNDED = np.array([[0.333, 0.333, 0.333], [0.2, 0.3, 0.5], [0.667, 0.167, 0.167]])


@st.composite
def transitions(draw, dimensions=(2, 3)):
    """Row-stochastic arrays of one or several matrices, some with zeros."""
    vocab_size = draw(st.integers(2, 5))
    shape = (vocab_size, vocab_size)
    if draw(st.sampled_from(dimensions)) == 3:
        shape = (draw(st.integers(1, 3)), *shape)
    entries = st.just(0.0) | st.floats(1e-9, 1.0)
    values = draw(arrays(np.float64, shape, elements=entries))
    values[..., 0] += values.sum(-1) == 0  # no row of zeros
    return values / values.sum(-1, keepdims=True)


@given(transitions())
def test_npy_is_read_bit_for_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("npy") / "pi.npy"
    for order in ("C", "F"):
        np.save(path, np.asarray(values, order=order))
        assert read_transition(path).tobytes() == values.tobytes()
    np.save(path, values.astype(">f8"))
    assert read_transition(path).tobytes() == values.tobytes()


@given(transitions())
def test_json_is_read_bit_for_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("json") / "pi.json"
    path.write_text(json.dumps(values.tolist()))
    assert read_transition(path).tobytes() == values.tobytes()


@given(
    transitions(dimensions=(2,)),
    st.sampled_from([",", ";", " ", "\t", ", ", "   "]),
    st.sampled_from(["", "# a comment\n", "\ufeff", "\n\n"]),
)
def test_csv_is_read_to_the_digits_written(tmp_path_factory, values, delimiter, start):
    path = tmp_path_factory.mktemp("csv") / "pi.csv"
    lines = [delimiter.join(repr(value) for value in row) for row in values.tolist()]
    path.write_text(start + "\n".join(lines) + "\n", encoding="utf-8")
    assert read_transition(path).tobytes() == values.tobytes()


@given(transitions(), st.integers(3, 6))
def test_normalised_rows_sum_to_one_and_stay_near(tmp_path_factory, values, digits):
    path = tmp_path_factory.mktemp("rounded") / "pi.npy"
    np.save(path, values.round(digits))
    rows = read_transition(path, normalise=True)
    assert np.abs(rows.sum(-1) - 1).max() < 1e-15 * rows.shape[-1]
    assert np.abs(rows - values).max() <= rows.shape[-1] * 10.0**-digits
    np.save(path, rows)
    assert read_transition(path, normalise=True).tobytes() == rows.tobytes()


def test_normalising_divides_each_row_by_its_own_sum(tmp_path):
    path = tmp_path / "pi.csv"
    np.savetxt(path, ROUNDED, delimiter=",", fmt="%.3f")
    rows = read_transition(path, normalise=True)
    assert np.allclose(rows, ROUNDED / ROUNDED.sum(-1, keepdims=True), rtol=0, atol=1e-15)
    assert rows[1].tobytes() == ROUNDED[1].tobytes()
    assert MTDTask(rows, order=2).vocab_size == 3


def test_normalising_keeps_the_bits_of_rows_that_are_off_by_float64_rounding_only(tmp_path):
    exact = np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]])
    assert (exact.sum(-1) != 1).any(), "a row that division would change"
    np.save(tmp_path / "pi.npy", exact)
    assert read_transition(tmp_path / "pi.npy", normalise=True).tobytes() == exact.tobytes()


def test_column_names_are_skipped(tmp_path):
    path = tmp_path / "pi.CSV"
    path.write_text("a,b\n0.25,0.75\n0.5,0.5\n")
    assert (read_transition(path) == GOOD).all()


def test_commas_and_semicolons_in_a_comment_separate_nothing(tmp_path):
    path = tmp_path / "pi.txt"
    path.write_text("# tokens a, b; rows sum to 1\n0.25 0.75\n0.5 0.5\n")
    assert (read_transition(path) == GOOD).all()


def test_a_long_cell_takes_linear_time(tmp_path):
    path = tmp_path / "pi.csv"
    path.write_text("1" * 10**6 + "x")
    # With a pattern that backtracks, this would take hours.
    with pytest.raises(ValueError, match="row 1, column 1: expected a number"):
        read_transition(path)


def test_whole_numbers_and_single_precision_are_numbers(tmp_path):
    np.save(tmp_path / "pi.npy", np.eye(3, dtype=np.int64))
    assert (read_transition(tmp_path / "pi.npy") == np.eye(3)).all()
    np.save(tmp_path / "pi.npy", GOOD.astype(np.float32))
    assert (read_transition(tmp_path / "pi.npy") == GOOD).all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pi.csv", "", "expected rows of numbers, got none"),
        ("pi.csv", "a,b\n", "expected rows of numbers, got none"),
        ("pi.csv", "0.5,0.5\n", "expected a square matrix, got 1 row of 2 numbers; if the first "),
        ("pi.csv", "1\n", "expected at least 2 tokens, got a single number"),
        ("pi.csv", "0.5,0.5\n1\n", "row 2 has 1 entries, but row 1 has 2 entries"),
        ("pi.csv", "0.5,0.5\n0.5,\n", "row 2, column 2: expected a number such as 0.25, got ''"),
        ("pi.csv", "0.5,0.5\n0.5,x\n", "row 2, column 2: expected a number such as 0.25, got 'x'"),
        ("pi.csv", "0,5;0,5\n1;0\n", "row 1, column 1: expected a number such as 0.25, got '0,5'"),
        ("pi.csv", "0.5+1j,0.5\n0,1\n", "row 1, column 1: expected a number such as 0.25, got"),
        ("pi.csv", ",a,b\na,0.5,0.5\n", "row 1, column 1: expected a number such as 0.25, got ''"),
        ("pi.csv", "0,1\n.5,.5\n.5,.5\n", "if the first line holds column numbers, delete it"),
        ("pi.csv", "0,.5,.5\n1,.5,.5\n", "if the first column holds row numbers, delete it"),
        ("pi.csv", "nan,1\n0,1\n", "row 1 of 2, column 1: expected a finite number, got nan"),
        ("pi.csv", "0,1\n1,inf\n", "row 2 of 2, column 2: expected a finite number, got inf"),
        ("pi.csv", "-0.5,1.5\n0,1\n", "row 1 of 2, column 1: expected a non-negative number"),
        ("pi.csv", "0,1\n0,0\n", "row 2 of 2 has only zeros; every token needs a next-token"),
        ("pi.csv", "0,1\n0.999,0\n", "row 2 of 2 sums to 0.999 instead of 1; if its entries were"),
        (
            "pi.csv",
            "0,1\n3,4\n",
            "row 2 of 2 sums to 7, which is too far from 1 for a rounding error; check the row",
        ),
        ("pi.csv", ".9,.5\n.1,.5\n", "the columns sum to 1, so transpose the matrix"),
        ("pi.csv", b"\xff\xfe0\x00", "expected text in UTF-8"),
        ("pi.json", "[[0.5, 0.5], [0.5", "not valid JSON"),
        ("pi.json", "[" * 100_000, "not valid JSON"),
        ("pi.json", "[]", "got 1 dimensions, shape (0,)"),
        ("pi.json", "[[], []]", "expected rows of numbers, got none (shape (2, 0))"),
        ("pi.json", "[0.5, 0.5]", "got 1 dimensions, shape (2,)"),
        ("pi.json", "[[[[1]]]]", "got 4 dimensions, shape (1, 1, 1, 1)"),
        ("pi.json", "[" * 500 + "1" + "]" * 500, "got more than 8 dimensions"),
        ("pi.json", '{"transition": [[1, 0], [0, 1]]}', "expected a list of rows such as"),
        ("pi.json", "0.5", "got a number"),
        ("pi.json", "[[1, 0], [0, true]]", "row 2: expected a number, got true"),
        ("pi.json", '[[1, 0], [0, "1"]]', "row 2: expected a number, got a string"),
        ("pi.json", "[[1, 0], [0, null]]", "row 2: expected a number, got null"),
        ("pi.json", "[[1, 0], 3]", "expected lists only, got a number"),
        ("pi.json", "[[1, 0], [0, 1, 0]]", "row 2 has 3 entries, but row 1 has 2 entries"),
        ("pi.json", "[[[1, 0], [0, 1]], [[1, 0], [0]]]", "matrix 2: row 2 has 1 entries"),
        ("pi.json", "[[[1, 0], [0, 1]], [[1, 0]]]", "matrix 2 has shape (1, 2), but matrix 1"),
        ("pi.json", "[[[1, 0], [0, 1]], [[1, 0], [0, 2]]]", "matrix 2, row 2 of 2 sums to 2"),
        ("pi.json", "[[NaN, 0], [0, 1]]", "row 1 of 2, column 1: expected a finite number"),
        ("pi.json", f"[[1, 0], [0, 1{'0' * 400}]]", "row 2: expected a probability, got a huge"),
        ("pi.npy", b"", "expected an array written by numpy.save"),
        ("pi.npy", b"PK\x03\x04 an archive", "expected an array written by numpy.save"),
        ("pi.xlsx", "", "expected a file that ends in .csv, .tsv, .txt, .npy, .json"),
    ],
)
def test_what_is_no_transition_matrix_is_refused_in_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_transition(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert message in sentence
    assert "\n" not in sentence


def test_a_row_far_from_one_is_refused_even_when_normalising(tmp_path):
    path = tmp_path / "pi.csv"
    path.write_text("0.5,0.5\n0.5,0.56\n")
    with pytest.raises(ValueError, match=r"row 2 of 2 sums to 1\.06, which is too far from 1"):
        read_transition(path, normalise=True)
    path.write_text("0.5,0.5\n0.5,0.54\n")
    assert read_transition(path, normalise=True)[1].tolist() == [0.5 / 1.04, 0.54 / 1.04]


class Decoy:
    """Writes a file if anything unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickled_objects_are_refused_and_never_run(tmp_path):
    decoy = tmp_path / "executed"
    np.save(tmp_path / "pi.npy", np.array([[Decoy(decoy)]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="got pickled objects, which are not read"):
        read_transition(tmp_path / "pi.npy")
    (tmp_path / "pi.npy").write_bytes(pickle.dumps(Decoy(decoy)))
    with pytest.raises(ValueError, match=r"expected an array written by numpy\.save"):
        read_transition(tmp_path / "pi.npy")
    assert not decoy.exists()


@pytest.mark.parametrize("dtype", ["complex128", "bool", "U3", "M8[s]"])
def test_arrays_of_anything_but_real_numbers_are_refused(tmp_path, dtype):
    np.save(tmp_path / "pi.npy", np.zeros((2, 2), dtype=dtype))
    with pytest.raises(ValueError, match="expected real numbers, got"):
        read_transition(tmp_path / "pi.npy")


def test_a_header_cannot_ask_for_more_memory_than_the_file_has(tmp_path):
    path = tmp_path / "pi.npy"
    np.save(path, GOOD)
    content = path.read_bytes().replace(b"(2, 2)", b"(99999999, 99999999)")
    padding = len(b"(99999999, 99999999)") - len(b"(2, 2)")
    path.write_bytes(content.replace(b" " * padding + b"\n", b"\n", 1))
    with pytest.raises(ValueError, match="the file is damaged"):
        read_transition(path)


@pytest.mark.parametrize(
    "header",
    [
        "(((",
        "'''",
        "{[]: 1}",
        "-" * 9000 + "1",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }\n  x\n y",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-2, -2), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 4), }",
    ],
)
def test_a_damaged_header_is_refused_in_one_sentence(tmp_path, header):
    path = tmp_path / "pi.npy"
    length = len(header).to_bytes(2, "little")
    path.write_bytes(b"\x93NUMPY\x01\x00" + length + header.encode() + bytes(32))
    with pytest.raises(ValueError, match=r"pi\.npy: expected"):
        read_transition(path)


def test_what_is_read_may_be_changed(tmp_path):
    np.save(tmp_path / "pi.npy", GOOD)
    read_transition(tmp_path / "pi.npy")[0, 0] = 0.5


def test_only_regular_files_of_bounded_size_are_read(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="expected a regular file"):
        read_transition(pipe)
    device = tmp_path / "zeros.csv"
    device.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="expected a regular file"):
        read_transition(device)
    with pytest.raises(ValueError, match=r"missing.csv: cannot be read \(No such file"):
        read_transition(tmp_path / "missing.csv")
    directory = tmp_path / "directory.csv"
    directory.mkdir()
    with pytest.raises(ValueError, match=r"directory.csv: expected a regular file, got a dir"):
        read_transition(directory)
    large = tmp_path / "large.csv"
    large.write_text("0.5,0.5\n0.5,0.5\n")
    monkeypatch.setattr(matrix_files, "LARGEST_FILE", 10)
    with pytest.raises(ValueError, match="expected at most 10 bytes, got more"):
        read_transition(large)
