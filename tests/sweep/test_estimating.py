"""Dry runs: what is measured, what follows from it, and how it is shown."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtdinterp.sweep import costs as costs_module
from mtdinterp.sweep import estimating
from mtdinterp.sweep.cells import Cell
from mtdinterp.sweep.costs import (
    LONGEST_PROBED,
    Costs,
    EstimateError,
    Parts,
    costs_of,
    lengths_to_probe,
    measure_parts,
    probing_seconds,
)
from mtdinterp.sweep.estimating import estimate
from mtdinterp.sweep.grid import expand, find_grid, read_grid
from mtdinterp.sweep.grid_values import parse
from mtdinterp.sweep.planning import Plan, plan
from mtdinterp.sweep.sizes import Size, interpolate, labels, size_of, to_measure

STEP, EVALUATION, FIXED = 1e-4, 0.5, 7.0
"""What a step costs per token of a sequence, and the other parts of a cell, in these tests."""


def plan_of(text: str) -> Plan:
    """The plan of a YAML text."""
    return plan(expand(parse(text.encode())), Path())


def shipped(name: str) -> Plan:
    """The plan of a shipped grid."""
    path = find_grid(name)
    return plan(read_grid(path), path.parent)


def sizes_of(planned: Plan) -> list[Size]:
    """The sizes of a plan, each once."""
    sizes = {size_of(cell).key: size_of(cell) for cell in planned.cells}
    return list(sizes.values())


@pytest.fixture
def measured_cells(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Cells are not measured; a step takes a time proportional to the length."""
    asked: list[Cell] = []

    def pretend(cell: Cell, probed: Sequence[int], plugins: Sequence[Path]) -> Parts:
        asked.append(cell)
        length = cell.model["length"]
        return Parts(
            startup=1.0,
            preparation=2.0,
            step=STEP * length,
            evaluation=EVALUATION,
            megabytes=100.0 * length,
            probing=dict.fromkeys(probed, FIXED - 3.0),
        )

    monkeypatch.setattr(estimating, "measure_parts", pretend)
    return asked


def quiet(line: str) -> None:
    """Announces nothing."""


def test_seeds_and_rates_share_a_size_and_everything_else_does_not() -> None:
    common = "vocab_size: 3\norder: 2\nlength: 16\n"
    alike = "seed: [0, 1]\nlearning_rate: [0.1, 0.2]\nsteps: [3, 4]\ntask_seed: [0, 1]"
    assert len(sizes_of(plan_of(common + alike))) == 1
    for setting in (
        "architecture: [disentangled, standard]",
        "layers: [2, 3]",
        "heads: [1, 2]",
        "batch_size: [4, 8]",
        "micro_batch_size: [4, 8]",
        "supervision: [last, all]",
        "loss: [mse, cross-entropy]",
        "threads: [1, 2]",
        "d_mlp: [0, 8]",
    ):
        assert len(sizes_of(plan_of(common + setting))) == 2, setting


def test_labels_tell_sizes_apart() -> None:
    for name in ("smoke", "paper", "lengths"):
        sizes = sizes_of(shipped(name))
        assert len(set(labels(sizes).values())) == len(sizes)
    text = "vocab_size: 3\norder: 2\nlength: [16, 32]\nbatch_size: [4, 8]"
    assert list(labels(sizes_of(plan_of(text))).values()) == [
        "disentangled T=16 batch_size=4",
        "disentangled T=16 batch_size=8",
        "disentangled T=32 batch_size=4",
        "disentangled T=32 batch_size=8",
    ]


def test_few_sizes_are_all_measured_and_many_at_three_lengths_per_family() -> None:
    few = sizes_of(shipped("smoke"))
    assert to_measure(few) == few
    chosen = to_measure(sizes_of(shipped("paper")))
    assert len(chosen) == 7 * 3
    assert {size.length for size in chosen} == {64, 512, 1984}


def test_probes_are_timed_at_short_lengths_and_once_per_kind_of_model() -> None:
    smoke = sizes_of(shipped("smoke"))
    found = lengths_to_probe(smoke)
    assert {size.length: found[size.key] for size in smoke} == {16: [16], 32: [32]}
    chosen = to_measure(sizes_of(shipped("paper")))
    assert list(lengths_to_probe(chosen).values()) == 3 * [[64, LONGEST_PROBED]]
    long = sizes_of(plan_of("vocab_size: 3\norder: 2\nlength: [512, 1024]"))
    assert lengths_to_probe(long) == {long[0].key: [LONGEST_PROBED]}


@given(
    st.floats(0.01, 100),
    st.floats(-1, 3),
    st.lists(st.integers(8, 2000), min_size=2, max_size=4, unique=True),
    st.integers(8, 2000),
)
def test_interpolation_is_exact_for_powers(
    factor: float, power: float, lengths: list[int], wanted: int
) -> None:
    known = {length: factor * length**power for length in lengths}
    assert math.isclose(interpolate(known, wanted), factor * wanted**power, rel_tol=1e-6)


def test_interpolation_uses_the_neighbours() -> None:
    known = {10: 1.0, 20: 2.0, 40: 8.0}
    assert interpolate(known, 20) == 2
    assert interpolate(known, 30) == pytest.approx(4.5)
    assert interpolate(known, 80) == pytest.approx(32)
    assert interpolate({10: 3.0}, 20) == 6
    assert probing_seconds({64: 2.0, 128: 4.0}, 512) == pytest.approx(4 * 4**1.5)
    assert probing_seconds({16: 2.0, 64: 8.0}, 32) == pytest.approx(4)


def test_a_cell_takes_its_steps_its_evaluations_and_what_happens_once() -> None:
    costs = Costs(step=0.01, evaluation=0.5, fixed=3.0, megabytes=1.0)
    # Evaluations at steps 0, 40, 80 and 100.
    assert costs.seconds(100, 40) == pytest.approx(3 + 1 + 4 * 0.5)
    assert costs.seconds(80, 40) == pytest.approx(3 + 0.8 + 3 * 0.5)


def test_one_cell_is_measured_per_size(measured_cells: list[Cell]) -> None:
    lines: list[str] = []
    found = estimate(shipped("smoke"), announce=lines.append)
    assert len(measured_cells) == 4
    assert lines[0] == "[1/4] measuring disentangled T=16 …"
    assert (found.cells, found.steps) == (8, 16_000)
    assert {row.source for row in found.rows} == {"measured"}


def test_the_numbers_add_up(measured_cells: list[Cell]) -> None:
    text = "vocab_size: 3\norder: 2\nlength: [16, 32]\nfrom: length\nseed: [0, 1]\nthreads: 2\n"
    found = estimate(plan_of(text + "steps: 1000\nevaluate_every: 500"), announce=quiet)
    seconds = {length: FIXED + 3 * EVALUATION + 1000 * STEP * length for length in (16, 32)}
    chain = sum(seconds.values())
    assert found.longest_cell == pytest.approx(seconds[32])
    assert found.longest_chain == pytest.approx(chain)
    assert found.cpu_hours == pytest.approx(2 * 2 * chain / 3600)
    assert found.megabytes == 3200
    assert found.schedules[1].makespan == pytest.approx(2 * chain)
    assert found.schedules[8].makespan == pytest.approx(chain)
    assert found.schedules[8].busy == pytest.approx(0.25)


def test_interpolated_sizes_are_marked(measured_cells: list[Cell]) -> None:
    found = estimate(shipped("paper"), announce=quiet)
    assert len(measured_cells) == 21
    sources = [row.source for row in found.rows]
    assert (sources.count("measured"), sources.count("interpolated")) == (21, 21)
    for row in found.rows:
        length = int(row.label.split("T=")[1].split()[0])
        assert row.costs.step == pytest.approx(STEP * length)
    text = found.text()
    assert "54 cells, 27,000,000 steps" in text
    assert "21 of 42 sizes were measured" in text
    assert "assumed to grow as" in text


def test_text_and_json_give_the_same_numbers(measured_cells: list[Cell]) -> None:
    found = estimate(shipped("smoke"), announce=quiet)
    values = json.loads(json.dumps(found.to_dict()))
    assert values["cells"] == 8
    assert [entry["workers"] for entry in values["schedules"]] == [1, 8, 64, 512]
    assert sum(row["cells"] for row in values["sizes"]) == 8
    lines = found.text().splitlines()
    assert lines[0] == found.title
    assert max(map(len, lines[:16])) <= 100
    for workers in (1, 8, 64, 512):
        assert any(line.startswith(f"{workers} ") for line in lines)


def test_scaling_and_a_busy_machine_are_said(
    measured_cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(1, 1, 1, 1, 1, {16: 1.0}, ["steps (8 of 128 sequences)"], load=3.0)
    monkeypatch.setattr(estimating, "measure_parts", lambda *arguments: parts)
    text = estimate(plan_of("vocab_size: 3\norder: 2\nlength: 16"), announce=quiet).text()
    assert "fewer sequences: steps (8 of 128 sequences); disentangled T=16." in text
    assert "busy: work took 3.0 times" in text


def test_parts_survive_json() -> None:
    parts = Parts(1, 2, 3, 4, 5, {16: 6.0}, ["a"], 1.5)
    assert Parts.from_dict(json.loads(json.dumps(parts.to_dict()))) == parts


def test_a_cell_that_cannot_be_measured_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = plan_of("vocab_size: 3\norder: 2\nlength: 12").cells
    monkeypatch.setattr(costs_module.sys, "executable", "/bin/false")
    with pytest.raises(EstimateError, match="could not be measured: it ended with code 1"):
        measure_parts(cell, [], [])


def test_costs_come_from_the_measured_member_of_a_family() -> None:
    sizes = sizes_of(plan_of("vocab_size: 3\norder: 2\nlength: [16, 32]"))
    parts = Parts(1, 2, 3, 4, 5, {16: 6.0})
    found = costs_of(sizes, {sizes[0].key: parts})
    assert found[sizes[0].key] == Costs(3, 4, 9, 5)
    assert found[sizes[1].key].step == 6


@pytest.mark.slow
@pytest.mark.promise
def test_a_real_measurement_is_plausible() -> None:
    text = "vocab_size: 3\norder: 2\nlength: 12\nsteps: 20\nbatch_size: 4\nreport: none\n"
    (cell,) = plan_of(text + "probes: attention_entropy").cells
    parts = measure_parts(cell, [12], [])
    assert 0 < parts.step < 1
    assert 0 < parts.evaluation < 60
    assert 0 < parts.preparation < 60
    assert 0.1 < parts.startup < 120
    assert 50 < parts.megabytes < 5000
    assert parts.probing.keys() == {12}
    assert parts.load >= 0.99
