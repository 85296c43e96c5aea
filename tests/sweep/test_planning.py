"""From grids to cells: which settings are refused, and what a cell's name depends on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtdinterp.sweep.cells import Cell, Measure, canonical
from mtdinterp.sweep.grid import GridError, expand, read_grid, shipped_grids
from mtdinterp.sweep.grid_values import parse
from mtdinterp.sweep.planning import Plan, plan
from mtdinterp.sweep.sources import sources_digest

TINY = "vocab_size: 3\norder: 2\nlength: 12\nsteps: 4\n"


def plan_of(text: str, folder: Path = Path(), threads: int = 1) -> Plan:
    """The plan of a YAML text."""
    return plan(expand(parse(text.encode())), folder, threads)


def cell_of(text: str = "") -> Cell:
    """The only cell of a tiny grid with further settings."""
    (cell,) = plan_of(TINY + text).cells
    return cell


def refusal(text: str, folder: Path = Path()) -> str:
    """The error that a YAML text is refused with."""
    with pytest.raises(GridError) as caught:
        plan_of(text, folder)
    return str(caught.value)


@pytest.mark.parametrize("path", shipped_grids().values(), ids=lambda path: path.stem)
def test_every_shipped_grid_plans_and_has_a_title(path: Path) -> None:
    grid = read_grid(path)
    planned = plan(grid, path.parent)
    assert planned.title
    assert len(planned.cells) == len(grid.combinations)


def test_the_smoke_grid_has_at_least_eight_cells() -> None:
    path = shipped_grids()["smoke"]
    assert len(plan(read_grid(path), path.parent).cells) >= 8


def test_the_paper_grid_has_the_papers_settings() -> None:
    path = shipped_grids()["paper"]
    cells = plan(read_grid(path), path.parent).cells
    assert len(cells) == 3 * 2 * 6 + 3 * 6
    for cell in cells:
        recipe = cell.recipe
        assert (recipe["steps"], recipe["batch_size"]) == (500_000, 128)
        assert (recipe["learning_rate"], recipe["schedule"]) == (1e-3, "constant")
        assert (recipe["loss"], recipe["supervision"]) == ("mse", "last")
        assert cell.model["vocab_size"] == 5
        assert cell.seeds["task"] == 0
        assert cell.parent is None
    assert {cell.model["length"] for cell in cells} >= {64, 1984}
    assert {cell.task["order"] for cell in cells} == {3, 4, 5}
    assert sum(cell.model["n_layers"] == 5 for cell in cells) == 18


def test_the_ladder_of_lengths_is_three_chains() -> None:
    path = shipped_grids()["lengths"]
    cells = plan(read_grid(path), path.parent).cells
    by_name = {cell.name: cell for cell in cells}
    assert [cell.model["length"] for cell in cells] == 3 * [64, 128, 256, 512, 1024, 1984]
    assert sum(cell.parent is None for cell in cells) == 3
    for cell in cells:
        if cell.parent is not None:
            parent = by_name[cell.parent]
            assert parent.model["length"] < cell.model["length"]
            assert parent.task == cell.task
        else:
            assert cell.recipe["name"] == "fast"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("stepz: 3", "did you mean 'steps'?"),
        ("batch-size: 3", "did you mean 'batch_size'?"),
        ("thread: 3", "did you mean 'threads'?"),
        ("help: true", "setting: expected one of"),
        ("architecture: standart", "did you mean 'standard'?"),
        ("probes: recover_bta", "did you mean 'recover_beta'?"),
        ("report: quikc", "did you mean 'quick'?"),
        ("threads: 0", "threads: expected an integer ≥ 1, got 0"),
        ("threads: 10000", "threads: expected at most 1,024"),
        ("sequences: 5", "sequences: expected an integer ≥ 32"),
        ("learning_rate: false", "learning_rate: expected a number or a text, got False"),
        ("seed: true", "seed: expected a number or a text, got True"),
        ("seed: 1.5", "--seed: expected an integer"),
        ("seed: [[1, 2]]", "seed: expected a single value, got [1, 2]"),
        ("normalise: maybe", "normalise: expected true or false, got 'maybe'"),
        ("initialisation: --seed", "initialisation: expected a number or a text"),
        ("concentration: [[1, '--seed', 3]]", "concentration: expected a number or a text"),
        ("concentration: .nan", "--concentration"),
        ("probes: recover_beta", "probes: a report runs all probes"),
        ("probes: 3\nreport: none", "probes: expected one of"),
        ("transition: 3", "expected a file that ends in"),
    ],
)
def test_wrong_settings_are_refused(setting: str, words: str) -> None:
    assert words in refusal(TINY + setting)


def test_an_error_names_the_combination() -> None:
    text = "order: [2, 3]\nlength: 12\nsteps: [5, -3]"
    assert refusal(text).startswith("order=2, steps=-3: argument --steps: expected an integer")
    assert refusal("order: [2, 12]\nlength: 12").startswith("order=12: --order must be less than")


def test_a_null_leaves_the_default() -> None:
    names = ("steps", "seed", "threads", "report", "probes", "sequences", "transition", "normalise")
    nulls = "".join(f"{name}: null\n" for name in names)
    (given,) = plan_of("order: 2\nlength: 12\n" + nulls).cells
    (plain,) = plan_of("order: 2\nlength: 12").cells
    assert (given.key, given.measure) == (plain.key, plain.measure)
    assert given.settings["steps"] is None


def test_threads_come_from_the_grid_or_from_the_call() -> None:
    assert [cell.threads for cell in plan_of(TINY, threads=2).cells] == [2]
    found = plan_of(TINY + "threads: [1, null]", threads=2).cells
    assert [cell.threads for cell in found] == [1, 2]


def test_files_are_found_from_the_folder_of_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids = tmp_path / "grids"
    grids.mkdir()
    (grids / "pi.csv").write_text("0.5,0.5\n0.25,0.75\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    text = "order: 2\nlength: 12\ntransition: pi.csv"
    (cell,) = plan_of(text, grids).cells
    assert cell.task["transition"] == [[0.5, 0.5], [0.25, 0.75]]
    assert "pi.csv" in refusal(text, elsewhere)
    absolute = text.replace("pi.csv", str(grids / "pi.csv"))
    assert plan_of(absolute, elsewhere).cells[0].key == cell.key


def test_a_setting_that_may_be_repeated_takes_a_list() -> None:
    (cell,) = plan_of(TINY + "setting: [[d_rel=3]]").cells
    assert cell.model["d_rel"] == 3


def test_identical_combinations_are_one_cell() -> None:
    text = TINY + "grids: [{seed: [0, 1]}, {seed: [1, 2]}]"
    cells = plan_of(text).cells
    assert [cell.settings["seed"] for cell in cells] == [0, 1, 2]
    assert len(plan_of(TINY + "learning_rate: [1e-2, 0.01, '0.01']").cells) == 1


def test_cells_that_differ_only_in_what_is_measured_are_refused() -> None:
    assert "cannot vary between cells" in refusal(TINY + "report: [quick, none]")
    text = TINY + "report: none\nprobes: [recover_beta, attention_entropy]"
    assert "give them as a list in a list" in refusal(text)
    together = TINY + "report: none\nprobes: [[recover_beta, attention_entropy]]"
    (cell,) = plan_of(together).cells
    assert cell.measure == Measure(("recover_beta", "attention_entropy"), "none")


def test_chains_are_kept_and_parents_come_first() -> None:
    cells = plan_of("vocab_size: 3\norder: 2\nlength: [12, 16, 24]\nfrom: length").cells
    assert [cell.parent for cell in cells] == [None, cells[0].name, cells[1].name]


@pytest.mark.parametrize(
    "changed",
    [
        {"measure": Measure(("recover_beta",), "none", 64)},
        {"settings": {"seed": 3}},
        {"label": "another"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_the_key_does_not_depend_on(changed: dict[str, Any]) -> None:
    cell = cell_of()
    assert replace(cell, **changed).key == cell.key


CHANGES: dict[str, Callable[[Cell], dict[str, Any]]] = {
    "task": lambda cell: {"task": {**cell.task, "concentration": 2.0}},
    "model": lambda cell: {"model": {**cell.model, "length": 13}},
    "recipe": lambda cell: {"recipe": {**cell.recipe, "steps": 5}},
    "seeds": lambda cell: {"seeds": {**cell.seeds, "model": 1}},
    "threads": lambda cell: {"threads": 2},
    "plugins": lambda cell: {"plugins": {"mine.py": "0" * 64}},
    "sources": lambda cell: {"sources": "0" * 64},
    "parent": lambda cell: {"parent": "disentangled-m2-T8-0123456789abcdef"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_key_depends_on(name: str) -> None:
    cell = cell_of()
    assert replace(cell, **CHANGES[name](cell)).key != cell.key


def test_every_setting_that_decides_changes_the_name() -> None:
    changed = ("seed: 1", "task_seed: 1", "learning_rate: 0.5", "batch_size: 8", "threads: 2")
    names = {cell_of(text).name for text in ("", *changed, "architecture: standard")}
    assert len(names) == 2 + len(changed)


def test_a_cell_survives_being_written_and_read() -> None:
    cell = cell_of("threads: 2")
    read = Cell.from_dict(cell.to_dict())
    assert read.name == cell.name
    assert read.sources == sources_digest()


def test_canonical_json_is_stable() -> None:
    assert canonical({"b": [1, 2.5, None, True], "a": {"é": "x"}}) == (
        '{"a":{"\\u00e9":"x"},"b":[1,2.5,null,true]}'
    )
    assert canonical({"rates": (0.9, 0.95)}) == canonical({"rates": [0.9, 0.95]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))


def test_the_name_of_a_fixed_cell_never_changes() -> None:
    # A change here means that all finished sweeps would run again.
    cell = Cell(
        task={"kind": "mtd", "transition": [[0.5, 0.5], [0.25, 0.75]], "order": 2},
        model={"architecture": "disentangled", "length": 12},
        recipe={"steps": 4, "adam_betas": (0.9, 0.95), "learning_rate": 0.01},
        seeds={"model": 0},
        threads=1,
        plugins={},
        sources="0" * 64,
        label="fixed",
    )
    assert cell.name == "fixed-1739010afcab2b50"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "layers: [3, 5]\nfrom: layers",
            "n_layers 3 cannot be handed on to a cell with n_layers 5",
        ),
        ("order: [2, 3]\nfrom: order", "only be handed on to a cell with the same task"),
        ("task_seed: [0, 1]\nfrom: task_seed", "the same task"),
        ("d_mlp: [0, 8]\narchitecture: standard\nfrom: d_mlp", "d_mlp 0 cannot be handed on"),
        ("length: [16, 12]\nfrom: length", "a model of length 16 cannot become shorter"),
    ],
)
def test_only_the_length_of_a_model_can_grow(settings: str, message: str) -> None:
    given = {line.partition(":")[0] for line in settings.splitlines()}
    common = [line for line in TINY.splitlines() if line.partition(":")[0] not in given]
    assert message in refusal("\n".join([*common, settings]))


def test_a_model_can_be_handed_on_to_a_cell_with_another_recipe() -> None:
    text = TINY.replace("steps: 4\n", "") + "steps: [4, 8]\nfrom: steps\n"
    first, second = plan_of(text).cells
    assert second.parent == first.name
