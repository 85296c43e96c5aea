"""scripts/mutate on a small project of which it is known what its tests notice."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections import deque, namedtuple
from pathlib import Path

import pytest
from mutate import draw_sample
from mutation.controls import Controls, control_files
from mutation.explained import read_explained
from mutation.groups import GROUPS, files_of
from mutation.mutants import mutants_of
from mutation.running import Task, require_space, run_all
from mutation.scores import Score

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "mutate.py"

TOY = '''"""A module with tests that notice some of its faults."""

LIMIT = 10


def is_small(number):
    return number < LIMIT


def doubled(number):
    return number * 2


def largest(numbers):
    best = numbers[0]
    for number in numbers:
        if number > best:
            best = number
    return best


def count_down(number):
    while number > 0:
        number -= 1
    return "done"


def untested(number):
    return number - 1


def tripled(number):
    total = number * 3
    return total


def untested_tripled(number):
    total = number * 3
    return total


def squared(number):
    return number**2


def remember(number):
    return number + 5


def halved(number):
    return number // 2


def leave(number):
    return 7 % number
'''

TOY_TESTS = """
import os
import subprocess
import sys
import time

from toy import count_down, halved, is_small, largest, leave, remember, squared, tripled

seen = []


def test_is_small():
    assert is_small(3)
    assert not is_small(30)


def test_largest():
    assert largest([1, 3, 2]) == 3


def test_count_down():
    assert count_down(2) == "done"


def test_doubled_in_another_process():
    code = "import toy; print(toy.doubled(3))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "6\\n"


def test_tripled():
    assert tripled(2) == 6


def test_squared_not_beside_a_mutant():
    squared(3)
    assert "MTDINTERP_MUTANT" not in os.environ


def test_remember():
    seen.append(remember(1))


def test_halved_after_remember():
    time.sleep(0.2)
    halved(3)
    assert seen


def test_leave():
    if leave(2) != 1:
        os._exit(3)
"""

EXPLAINED = """# A comment.
toy.py
- if number > best:
+ if number >= best:
= Assigning an equal number changes nothing.
"""


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory):
    """The whole program on the small project: its output and the record of every mutant."""
    root = tmp_path_factory.mktemp("toy")
    (root / "toy.py").write_text(TOY)
    (root / "tests").mkdir()
    (root / "tests" / "test_toy.py").write_text(TOY_TESTS)
    (root / "scripts" / "mutation").mkdir(parents=True)
    (root / "scripts" / "mutation" / "explained.txt").write_text(EXPLAINED)
    output = run_on(root, "--json", str(root / "result.json"))
    assert (root / "toy.py").read_text() == TOY
    return output, json.loads((root / "result.json").read_text())["mutants"], root


def run_on(root, *flags):
    """Run all mutants of the small project; returns what is printed."""
    command = [sys.executable, str(SCRIPT), "toy.py", "--sample", "0", "--root", str(root)]
    command += ["--libraries", "", *flags]
    # Without the plugins of this project, which take most of the time.
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "MUTATION_LEAST_SECONDS": "1",
    }
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def found(toy_run, after):
    entries = [entry for entry in toy_run[1] if entry["after"] == after]
    assert len(entries) == 1
    return entries[0]


@pytest.mark.parametrize(
    ("after", "test"),
    [
        ("return number >= LIMIT", "test_is_small"),
        ("if number <= best:", "test_largest"),
        ("return number / 2", "test_doubled_in_another_process"),
    ],
)
def test_a_mutant_that_a_test_notices_is_killed_by_it(toy_run, after, test):
    entry = found(toy_run, after)
    assert entry["killed"]
    assert entry["how"].endswith(test)


def test_an_endless_loop_is_killed_by_the_time_limit(toy_run):
    entries = [entry for entry in toy_run[1] if entry["before"] == "number -= 1"]
    assert "timeout" in {entry["how"] for entry in entries}


def test_a_mutant_that_no_test_notices_survives(toy_run):
    assert not found(toy_run, "return number <= LIMIT")["killed"]
    assert not found(toy_run, "LIMIT = 11")["killed"]


def test_a_line_that_no_test_touches_survives_with_that_reason(toy_run):
    entry = found(toy_run, "return number + 1")
    assert not entry["killed"]
    assert entry["how"] == "no test touches the line"


def test_an_explained_survivor_is_reported_with_its_reason_and_counted_apart(toy_run):
    output, entries, _ = toy_run
    assert found(toy_run, "if number >= best:")["reason"].startswith("Assigning an equal number")
    killed = sum(entry["killed"] for entry in entries)
    survived = len(entries) - killed
    assert f"score without explained mutants: {Score(killed, survived - 1)}" in output
    assert f"score with them as survivors:    {Score(killed, survived)}" in output


def of_tripled(entries):
    """What happened to the same change at the place that is tested and at the other one."""
    changes = [entry for entry in entries if entry["after"] == "total = number / 3"]
    return {entry["occurrence"]: entry["killed"] for entry in changes}


def test_the_same_change_at_two_places_has_two_outcomes(toy_run):
    assert of_tripled(toy_run[1]) == {1: True, 2: False}


def test_again_does_not_count_a_survivor_as_killed_elsewhere(toy_run):
    _, _, root = toy_run
    again = root / "again.json"
    run_on(root, "--again", str(root / "result.json"), "--json", str(again))
    assert of_tripled(json.loads(again.read_text())["mutants"]) == {1: True, 2: False}


def test_a_test_that_fails_beside_any_mutant_kills_none(toy_run):
    output, entries, _ = toy_run
    of_squared = [entry for entry in entries if entry["before"] == "return number**2"]
    assert of_squared
    assert not any(entry["killed"] for entry in of_squared)
    assert "unchanged source: tests/test_toy.py::test_squared_not_beside_a_mutant" in output


def test_a_test_that_depends_on_another_one_kills_none(toy_run):
    """It passes with all tests of the file, but not with those of its line."""
    output, entries, _ = toy_run
    of_halved = [entry for entry in entries if entry["before"] == "return number // 2"]
    assert of_halved
    assert not any(entry["killed"] for entry in of_halved)
    assert "unchanged source: tests/test_toy.py::test_halved_after_remember" in output


def test_a_process_that_ends_in_a_test_is_killed_by_that_test(toy_run):
    entry = found(toy_run, "return 7 * number")
    assert entry["killed"]
    assert entry["how"] == "crash (exit code 3)"
    content = json.loads((toy_run[2] / "result.json").read_text())["controls"]
    assert "tests/test_toy.py::test_leave" in content["tests"]


def test_the_number_of_controls_is_reported(toy_run):
    output, _, root = toy_run
    content = json.loads((root / "result.json").read_text())["controls"]
    assert content["files"] == ["toy.py"]
    assert content["runs"] >= 1 + len(content["tests"]) + len(content["left_out"])
    assert (
        f"{content['runs']} controls: 1 unchanged files survived all of their tests, "
        f"{len(content['tests'])} killing tests pass on the unchanged source, 2 tests left out"
    ) in output


def run_faulty(folder, plugin):
    """Run a passing test beside an unchanged file, with faults of pytest itself."""
    (folder / "toy.py").write_text("number = 1\n")
    (folder / "test_toy.py").write_text(
        "def test_number():\n    import toy\n    assert toy.number\n"
    )
    (folder / "conftest.py").write_text(plugin)
    (mutant,) = mutants_of("toy.py", "number = 1\n")[:1]
    task = Task(mutant, ["test_toy.py::test_number"], {})
    ((_, outcome),) = run_all(folder, deque([task]), 1)
    return task, outcome


def test_a_failure_of_pytest_itself_is_no_kill(tmp_path):
    plugin = "def pytest_sessionfinish():\n    raise RuntimeError('a fault of pytest')\n"
    _, outcome = run_faulty(tmp_path, plugin)
    assert outcome.how == "pytest itself failed"
    assert not outcome.killed
    assert not outcome.passed


def test_unchanged_source_that_cannot_be_collected_stops_the_run(tmp_path):
    task, _ = run_faulty(tmp_path, "raise ImportError('never imported')\n")
    with pytest.raises(RuntimeError, match="does not run like a mutant"):
        control_files(tmp_path, [task], 1, Controls())


def test_a_full_disk_stops_the_run(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(RuntimeError, match="1 bytes are free"):
        require_space(tmp_path)


def imported_by(file):
    """The modules that a file imports, and what it imports from them."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_has_all_tests_that_import_its_sources(name):
    group = GROUPS[name]
    modules = {
        file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for file in files_of(ROOT, group)
    }
    known = group.tests + group.only_used_by
    assert all((ROOT / path).exists() for path in known)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if imported_by(file) & modules:
            path = file.relative_to(ROOT)
            assert any(path.is_relative_to(test) for test in known), path


def test_texts_annotations_and_labels_are_left_alone():
    source = (
        '"""A docstring."""\n'
        "label = 'a label'\n"
        "def refuse(value: 'int | None') -> None:\n"
        "    '''Another one.'''\n"
        "    if value:\n"
        "        raise ValueError(f'expected 0, got {value + 1}')\n"
    )
    changes = {mutant.after for mutant in mutants_of("file.py", source)}
    assert changes == {"if not (value):", "pass"}


def test_the_interval_is_wilsons():
    """The values of the formula for 90 of 100, to four digits."""
    low, high = Score(90, 10).interval
    assert (round(low, 4), round(high, 4)) == (0.8256, 0.9448)
    assert Score(10, 0).interval[1] == pytest.approx(1)


def test_a_sample_is_in_proportion_to_lines_and_the_same_for_the_same_seed():
    lines = {"long.py": 30, "short.py": 10}
    by_file = {file: mutants_of(file, "x = 1 + 2\n" * count) for file, count in lines.items()}
    sample = draw_sample(by_file, lines, 20, seed=3)
    assert [mutant.file for mutant in sample] == ["long.py"] * 15 + ["short.py"] * 5
    assert sample == draw_sample(by_file, lines, 20, seed=3)
    assert sample != draw_sample(by_file, lines, 20, seed=4)


def test_an_explanation_is_about_one_occurrence(tmp_path):
    path = tmp_path / "explained.txt"
    path.write_text("toy.py\n- a\n+ b\n= one\n\ntoy.py, occurrence 2\n- a\n+ b\n= two\n")
    assert read_explained(path) == {("toy.py", "a", "b", 1): "one", ("toy.py", "a", "b", 2): "two"}


def test_the_same_change_is_not_explained_twice(tmp_path):
    path = tmp_path / "explained.txt"
    path.write_text("toy.py\n- a\n+ b\n= one\n\ntoy.py\n- a\n+ b\n= two\n")
    with pytest.raises(ValueError, match="explained twice"):
        read_explained(path)


def test_an_incomplete_explanation_is_refused(tmp_path):
    path = tmp_path / "explained.txt"
    path.write_text("toy.py\n- before\n= reason\n")
    with pytest.raises(ValueError, match="expected entries of four lines"):
        read_explained(path)
