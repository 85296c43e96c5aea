"""The table of a sweep: both files say the same, and every column has its place."""

import csv
import io
import json

import pyarrow.parquet
import pytest
from sweep_files import Made, write_files

from mtdinterp.sweep.cells import DONE
from mtdinterp.sweep.table import as_csv, as_parquet, read_rows, write_table


def from_csv(content):
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def from_parquet(content):
    return pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()


def as_text(row):
    """A row as CSV shows it."""
    return {name: "" if value is None else str(value) for name, value in row.items()}


@pytest.fixture
def sweep(tmp_path):
    """Three finished cells that have different settings, metrics and probes, and a waiting one."""
    cells = (
        Made(
            {"length": 16, "betas": [0.9, 0.95], "seed": 0},
            {"kl": 0.1, "step": 10},
            {"recover.beta": 3.0, "decode.r2": 0.5},
        ),
        Made(
            {"length": 32, "betas": 0.9, "recipe": 'päper, "new"\nline', "seed": 0},
            {"kl": float("nan"), "ratio": float("inf"), "step": 10},
            {"decode.r2": True, "decode.layer": 1, "recover.beta": 4, "recover.text": ""},
        ),
        Made({"length": 64, "betas": None, "seed": 2**70}, {"kl": 1}, {}, run={}),
        Made({"length": 128, "betas": None, "seed": 1}),
    )
    return write_files(tmp_path, cells, ("length", "betas", "recipe", "seed"))


def test_columns_come_group_by_group_and_those_of_a_probe_together(sweep):
    rows = read_rows(sweep)
    assert [list(row) for row in rows] == 3 * [
        [
            *("name", "length", "betas", "seed", "recipe", "kl", "step", "ratio"),
            *("recover.beta", "recover.text", "decode.r2", "decode.layer", "weights_sha256"),
            *("run.host", "run.seconds", "run.mtdinterp", "run.torch"),
        ]
    ]


def test_both_files_say_the_same(sweep):
    parquet, table = write_table(sweep)
    expected = from_parquet(parquet.read_bytes())
    found = from_csv(table.read_bytes())
    assert [row["name"] for row in found] == [entry.name for entry in sweep.entries[:3]]
    numbers = ("kl", "step", "recover.beta", "run.seconds", "length")
    for one, other in zip(found, expected, strict=True):
        for name in numbers:
            value = one.pop(name)
            assert other.pop(name) == (float(value) if value else None)
        assert one == as_text(other)


def test_what_a_cell_does_not_have_is_missing(sweep):
    first, second, third = read_rows(sweep)
    assert first["recipe"] is first["ratio"] is first["decode.layer"] is None
    assert second["kl"] is second["ratio"] is None  # not finite
    assert third["run.host"] is third["recover.beta"] is None


def test_lists_are_json_and_mixed_columns_are_text(sweep):
    rows = read_rows(sweep)
    assert [row["betas"] for row in rows] == ["[0.9, 0.95]", 0.9, None]
    stored = from_parquet(as_parquet(rows))
    assert [row["betas"] for row in stored] == ["[0.9, 0.95]", "0.9", None]
    assert [row["decode.r2"] for row in stored] == ["0.5", "True", None]
    assert [row["seed"] for row in stored] == ["0", "0", str(2**70)]
    assert from_csv(as_csv(rows))[1]["recipe"] == 'päper, "new"\nline'


def test_numbers_stay_numbers_to_the_last_digit(sweep):
    rows = read_rows(sweep)
    rows[0]["kl"] = 0.1 + 0.2
    assert from_parquet(as_parquet(rows))[0]["kl"] == 0.1 + 0.2
    assert float(from_csv(as_csv(rows))[0]["kl"]) == 0.1 + 0.2
    assert from_parquet(as_parquet(rows))[2]["kl"] == 1.0


def test_a_setting_comes_before_a_metric_of_its_name(tmp_path):
    sweep = write_files(tmp_path, [Made({"step": 7}, {"step": 9, "kl": 0.5})], ())
    assert read_rows(sweep)[0]["step"] == 7
    assert list(read_rows(sweep)[0])[:3] == ["name", "step", "kl"]


def test_damaged_results_are_left_out(sweep):
    (sweep.directories[0] / DONE).write_text("{")
    done = json.loads((sweep.directories[1] / DONE).read_text())
    done |= {"metrics": [], "probes": 3, "run": None}
    (sweep.directories[1] / DONE).write_text(json.dumps(done))
    rows = read_rows(sweep)
    assert [row["name"] for row in rows] == [entry.name for entry in sweep.entries[1:3]]
    assert rows[0]["kl"] is None
    write_table(sweep)


def test_half_a_character_is_replaced(tmp_path):
    sweep = write_files(tmp_path, [Made({"recipe": "a\ud800b"}, {"kl": 0.5})], ())
    assert read_rows(sweep)[0]["recipe"] == "a?b"
    write_table(sweep)


def test_nothing_is_written_before_a_cell_is_finished(tmp_path):
    sweep = write_files(tmp_path, [Made({"length": 16})], ())
    assert write_table(sweep) == []
