"""scripts/mutate on a small project of which it is known what its tests notice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutate import draw_sample
from mutation.explained import read_explained
from mutation.mutants import mutants_of
from mutation.scores import Score

SCRIPT = Path(__file__).parent.parent / "scripts" / "mutate.py"

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
'''

TOY_TESTS = """
import subprocess
import sys

from toy import count_down, is_small, largest


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
    command = [sys.executable, str(SCRIPT), "toy.py", "--sample", "0", "--root", str(root)]
    command += ["--libraries", "", "--json", str(root / "result.json")]
    # Without the plugins of this project, which take most of the time.
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "MUTATION_LEAST_SECONDS": "1",
    }
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert (root / "toy.py").read_text() == TOY
    return result.stdout, json.loads((root / "result.json").read_text())["mutants"]


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
    output, entries = toy_run
    assert found(toy_run, "if number >= best:")["reason"].startswith("Assigning an equal number")
    killed = sum(entry["killed"] for entry in entries)
    survived = len(entries) - killed
    assert f"score without explained mutants: {Score(killed, survived - 1)}" in output
    assert f"score with them as survivors:    {Score(killed, survived)}" in output


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


def test_an_incomplete_explanation_is_refused(tmp_path):
    path = tmp_path / "explained.txt"
    path.write_text("toy.py\n- before\n= reason\n")
    with pytest.raises(ValueError, match="expected entries of four lines"):
        read_explained(path)
