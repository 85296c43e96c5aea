"""Settings that only say how cells are shown and measured do not make other cells."""

from mtdinterp.sweep.cells import Measure
from mtdinterp.sweep.grid import expand
from mtdinterp.sweep.planning import plan
from mtdinterp.sweep.sources import PACKAGE, deciding_files
from sweep.small import SETTINGS


def cell_with(tmp_path, **changes):
    (cell,) = plan(expand({**SETTINGS, **changes}), tmp_path).cells
    return cell


def test_a_label_is_in_the_table_but_not_in_the_name(tmp_path):
    plain = cell_with(tmp_path)
    labelled = cell_with(tmp_path, group="small")
    assert labelled.name == plain.name
    assert labelled.settings["group"] == "small"


def test_a_grid_can_ask_for_no_probes_for_one_or_for_all(tmp_path):
    expected = {"none": (), "recover_beta": ("recover_beta",), "all": None}
    for probes, names in expected.items():
        measure = cell_with(tmp_path, probes=probes).measure
        assert measure == Measure(names, "none", 64)


def test_what_the_zoo_contains_decides_no_numbers():
    files = deciding_files()
    assert PACKAGE / "training" / "zoo.py" not in files
    assert PACKAGE / "training" / "loop.py" in files
