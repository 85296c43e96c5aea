"""The harness notices every kind of defect, and nothing else."""

import pytest

from fuzzing.damage import damaged, edited, render
from fuzzing.outcomes import DEFECT, LOADED, REFUSED, complaint

FAULTS = {
    "hang": "timeout: more than 5 s",
    "allocate": "memory: MemoryError",
    "crash": "crash: SIGSEGV",
    "exit": "crash: it ended with status",
    "unexpected": "traceback: KeyError: 'step'",
    "two lines": "sentence: it contains line breaks",
    "no message": "sentence: it is empty",
    "unpickle": "executed: pickle",
    "import": "executed: import",
    "program": "executed: subprocess.Popen",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_reader_is_a_defect(worker, fault):
    outcome = worker.run("faults", fault)
    assert outcome.kind == DEFECT
    assert outcome.detail.startswith(FAULTS[fault])


def test_a_defect_does_not_spoil_the_next_case(worker):
    worker.run("faults", "crash")
    worker.run("faults", "unpickle")
    assert worker.run("faults", "read").kind == LOADED
    assert worker.run("faults", "refuse").kind == REFUSED


@pytest.mark.parametrize(
    ("reader", "case"),
    [
        ("config", {}),
        ("config", {"through": "zoo"}),
        ("config", {"through": "workbench"}),
        ("config", {"through": "resume"}),
        ("config", {"through": "import"}),
        ("weights", {"through": "import"}),
        ("history", {"through": "history"}),
        ("training", {}),
        ("transition", {"suffix": ".csv"}),
        ("transition", {"suffix": ".npy"}),
        ("transition", {"suffix": ".json"}),
        ("plugins", {"packages": []}),
        ("workbench", {"path": "/api/view"}),
        ("command", {"words": ["train", "--order", "2", "--length", "6"]}),
    ],
)
def test_undamaged_input_is_accepted(worker, reader, case):
    outcome = worker.run(reader, case)
    assert outcome.kind == LOADED, outcome.detail


def test_edits_change_what_they_name_and_nothing_else():
    values = {"a": [1, 2], "b": {"c": 3}}
    edits = [["set", ["a", 0], 9], ["drop", ["b", "c"]], ["rename", ["b"], "d"], ["drop", ["no"]]]
    assert edited(values, edits) == {"a": [9, 2], "d": {}}


def test_raw_text_is_put_into_json():
    value = {"deep": {"$text": [["[", 2], ["]", 2]]}, "odd": {"$float": "nan"}}
    assert render(value) == b'{"deep": [[]], "odd": NaN}'


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (["flip", 1, 0], b"accd"),
        (["truncate", 2], b"ab"),
        (["insert", 4, "x", 2], b"abcdxx"),
        (["delete", 1, 2], b"ad"),
        (["copy", 0, 2, 4], b"abcdab"),
        (["replace", "\xff"], b"\xff"),
    ],
)
def test_bytes_are_damaged_as_described(damage, expected):
    assert damaged(b"abcd", [damage]) == expected


def test_a_sentence_is_short_and_printable():
    assert complaint("expected a number, got 'x'") == ""
    assert complaint("x" * 10_000)
    assert complaint("\x1b[2J")
