"""The tables of docs/results are of the models and settings that ship."""

import re
from dataclasses import replace

import pytest
import torch
from measure_recipes import measure, outcome_of, section, versions_of
from measure_zoo import PAGES
from recipe_groups import GROUPS
from result_pages import RESULTS, page, replace_section, row_of
from zoo_rows import beta_row, variation_row, zoo_row

from mtdinterp import load_checkpoint
from mtdinterp.checkpoint_files import zoo_names
from mtdinterp.checkpoints.digests import tensors_digest
from mtdinterp.checkpoints.provenance import (
    Provenance,
    provenance_of,
    recorded_weights,
    weights_digest,
)
from mtdinterp.checkpoints.save import versions
from mtdinterp.sweep.grid import find_grid, read_grid
from mtdinterp.sweep.planning import plan

MEASURED_ON_ZOO = {
    **dict.fromkeys(PAGES, "scripts/measure_zoo"),
    "reproduction": "mtdinterp reproduce all",
}
"""The pages that are about the models of the zoo, with the command that makes each."""
CHEAP = "disentangled-m4-T64"


@pytest.fixture(scope="module")
def shipped() -> dict[str, str]:
    return {name: weights_digest(name) for name in zoo_names()}


@pytest.mark.parametrize("name", MEASURED_ON_ZOO)
def test_pages_are_of_the_weights_that_ship(name, shipped):
    text = (RESULTS / f"{name}.md").read_text()
    command = MEASURED_ON_ZOO[name]
    assert f"Made by `{command}` with mtdinterp" in text
    recorded = recorded_weights(text)
    assert set(recorded) == set(shipped), f"docs/results/{name}.md lacks models; run {command}"
    for model, digest in shipped.items():
        assert recorded[model] == digest, (
            f"docs/results/{name}.md was made from other weights of {model}; run {command}"
        )


def test_training_tables_are_of_the_settings_that_ship():
    recorded = recorded_weights((RESULTS / "training.md").read_text())
    assert {"m3", "m4", "m5", "standard"} <= set(recorded)
    for group, digest in recorded.items():
        assert digest == GROUPS[group].digest, (
            f"docs/results/training.md: {group} was measured with other settings; run "
            f"scripts/measure_recipes {group}"
        )


def test_the_digest_covers_the_settings_but_not_the_criterion():
    group = GROUPS["m4"]
    assert replace(group, seconds=1.0, at_most={}).digest == group.digest
    assert group.digest != GROUPS["m3"].digest
    assert group.digest != GROUPS["m4-wide"].digest
    assert group.digest != GROUPS["all-positions"].digest


def test_the_cells_of_the_grid_are_the_runs_of_the_groups():
    path = find_grid("recipes")
    cells = plan(read_grid(path), path.parent).cells
    assert len(cells) == sum(group.seeds for group in GROUPS.values())
    for cell in cells:
        group = GROUPS[cell.settings["group"]]
        assert cell.recipe == group.recipe.to_dict()
        assert cell.model["length"] == group.length
        assert cell.model["n_layers"] == group.layers
        assert cell.model["d_mlp"] == group.d_mlp
        assert cell.model.get("d_rel") in (None, group.d_rel or group.order)
        assert cell.task["order"] == group.order
        expected = cell.seeds["model"] if group.task_seed is None else group.task_seed
        assert cell.seeds["task"] == expected


ROW = {
    "name": "a-cell",
    "seed": 3,
    "kl": 0.0125,
    "kl_of_one_step": 0.0125,
    "kl_of_two_step": 0.01,
    "beta": 15.91,
    "optimal_beta": 15.84,
    "optimal_low": 15.6,
    "optimal_high": 16.1,
    "optimal_flat": False,
    "branch": "direct",
    "run.seconds": 26.4,
    **{f"run.{name}": number for name, number in versions().items()},
}
"""A run as the table of its sweep has it."""


def test_a_row_of_the_sweep_becomes_a_row_of_the_page():
    outcome = outcome_of(ROW)
    beta = "15.9; 15.84 (15.60 to 16.10)"
    assert outcome.row() == ("3", "0.01250", "1.000", "1.250", beta, "direct", "26")
    assert outcome.meets(GROUPS["m4"])
    assert not outcome_of({**ROW, "run.seconds": 61.0}).meets(GROUPS["m4"])
    assert not outcome_of({**ROW, "branch": "mirrored"}).meets(GROUPS["m4"])
    assert not outcome_of({**ROW, "kl": 0.0132}).meets(GROUPS["m4"])
    with pytest.raises(SystemExit, match="a-cell: two_step could not be tuned"):
        outcome_of({**ROW, "kl_of_two_step": None})


def test_a_row_of_the_page_says_that_an_optimum_is_flat_or_has_no_interval():
    flat = outcome_of({**ROW, "optimal_flat": True, "optimal_high": None})
    assert flat.row()[4] == "15.9; flat: every β ≥ 16 fits equally well"
    old = {name: value for name, value in ROW.items() if name != "optimal_flat"}
    assert outcome_of(old).row()[4] == "15.9; 15.8 (interval not recorded)"


def test_a_section_says_how_many_runs_succeeded_and_what_it_is_about():
    group = replace(GROUPS["m4"], seeds=2)
    text = section("m4", group, [ROW, {**ROW, "seed": 4, "branch": "mirrored"}])
    assert text.startswith("## m4: disentangled, 3 layers, m = 4, T = 64, 8000 steps\n")
    assert recorded_weights(text) == {"m4": group.digest}
    assert row_of(f"# Title\n\n{text}", "## m4:", "4")[5] == "mirrored"
    assert "within 60 s): 1 of 2; median 1.000 × one-step MD." in text


def test_runs_with_different_software_are_not_passed_off_as_alike():
    other = {**ROW, "run.torch": "2.0"}
    assert versions_of([ROW, other])["torch"] == f"2.0 and {ROW['run.torch']}"
    assert versions_of([ROW]) == versions()


def test_every_page_of_results_is_linked_from_a_page_of_documentation():
    pages = RESULTS.parent.glob("*.md")
    linked = "\n".join(path.read_text() for path in pages)
    for path in RESULTS.glob("*.md"):
        assert f"(results/{path.name})" in linked


def test_a_page_can_be_read_back():
    provenance = Provenance("a command", {"torch": "2"}, {"some-model": "ab" * 32})
    text = page("Title", provenance, ["## Part", "| model | x |\n|---|---|\n| some-model | 1.5 |"])
    assert text.startswith("# Title\n\nMade by `a command` with torch 2.")
    assert recorded_weights(text) == {"some-model": "ab" * 32}
    assert row_of(text, "## Part", "some-model") == ["some-model", "1.5"]


def test_other_weights_have_another_digest():
    model = load_checkpoint(CHEAP).model
    assert provenance_of("x", [CHEAP]).weights == {CHEAP: tensors_digest(model.state_dict())}
    with torch.no_grad():
        model.W_U[0, 0] += 1e-6
    assert tensors_digest(model.state_dict()) != weights_digest(CHEAP)


def test_a_section_replaces_the_one_with_its_name(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("# Title\n\nText.\n\n## a: old\n\nold\n\n## b: kept\n\nkept\n")
    replace_section(path, "## a: new\n\nnew\n")
    assert path.read_text() == "# Title\n\nText.\n\n## a: new\n\nnew\n\n## b: kept\n\nkept\n"
    replace_section(path, "## c: added\n\nadded\n")
    assert path.read_text().endswith("kept\n\n## c: added\n\nadded\n")


def numbers(cells: list[str] | tuple[str, ...]) -> list[float]:
    """All numbers in the cells of a row, without the model's name."""
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", " ".join(cells[1:]))]


def test_the_end_of_training_is_that_of_the_stored_history():
    text = (RESULTS / "zoo.md").read_text()
    stored = row_of(text, "| model", CHEAP)
    assert tuple(stored) == zoo_row(CHEAP, load_checkpoint(CHEAP))


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(
    ("heading", "measure"),
    [("## β", beta_row), ("## π, mean total variation", variation_row)],
)
def test_probes_still_find_what_the_table_says(heading, measure):
    text = (RESULTS / "probes.md").read_text()
    stored = row_of(text, heading, CHEAP)
    measured = measure(CHEAP, load_checkpoint(CHEAP))
    # Rounding differs between processors; the last digit shown may too.
    assert numbers(measured) == pytest.approx(numbers(stored), rel=0.02, abs=0.011)
    assert measured[-1] == stored[-1]


@pytest.mark.slow
@pytest.mark.promise
def test_the_fast_recipe_still_reaches_what_the_table_says(tmp_path):
    text = (RESULTS / "training.md").read_text()
    stored = row_of(text, "## m4:", "0")
    page = tmp_path / "page.md"
    page.write_text("# Training\n")
    assert measure({"m4": replace(GROUPS["m4"], seeds=1)}, tmp_path / "sweep", page) == 0
    measured = row_of(page.read_text(), "## m4:", "0")
    recorded = numbers(stored[:-1])
    # Behind the optimum, new rows have its interval, which rows of earlier versions lack.
    assert len(recorded) >= 5
    assert numbers(measured[:-1])[: len(recorded)] == pytest.approx(recorded, rel=0.02)
    assert measured[5] == stored[5] == "direct"
