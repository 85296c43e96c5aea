"""Commands that are killed at random moments lose nothing and leave nothing behind.

Each command runs in a forked process, which saves the seconds that its imports take.
"""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import time

import build_zoo
import pytest
import torch

from mtdinterp import MTDTask, load_checkpoint, save_checkpoint
from mtdinterp.cli import main
from mtdinterp.construction import one_step
from mtdinterp.sweep import attempts
from mtdinterp.training.zoo import Entry, entry_run

TASK = MTDTask.random(3, 2, seed=0)
SIZE = ["--vocab-size", "3", "--order", "2", "--length", "12"]


def run_forked(action, seconds=None):
    """Run an action in a process of its own, and kill it after some time.

    Args:
        action: a function without arguments; its result is the exit code.
        seconds: when to kill it; never if None.

    Returns:
        The exit code, or None if the process was killed.
    """
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os._exit(action() or 0)
    if seconds is not None:
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def kill_often(action, n_kills, check):
    """Kill an action at random moments of its life until it was killed often enough.

    Args:
        action: a function without arguments.
        n_kills: how often it must be killed.
        check: called after every kill.
    """
    started = time.monotonic()
    assert run_forked(action) == 0
    seconds = time.monotonic() - started
    moments = random.Random(0)
    killed = 0
    while killed < n_kills:
        if run_forked(action, moments.uniform(0, seconds)) is None:
            check()
            killed += 1
    assert run_forked(action) == 0


def kills(n_few, n_many, *marks):
    """A few kills, with the given marks, and many in the run of all tests."""
    few = pytest.param(n_few, marks=marks)
    return pytest.mark.parametrize("n_kills", [few, pytest.param(n_many, marks=pytest.mark.slow)])


PROMISE = (pytest.mark.slow, pytest.mark.promise)


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def same_weights(left, right):
    expected = load_checkpoint(left).model.state_dict()
    found = load_checkpoint(right).model.state_dict()
    return all(torch.equal(expected[name], found[name]) for name in expected)


@kills(3, 60)
def test_training(n_kills, tmp_path):
    few = ["--batch-size", "4", "--steps", "60", "--evaluate-every", "10", "--save-every", "7"]
    whole = tmp_path / "whole"
    out = tmp_path / "runs" / "run"

    def train():
        if (out / "training.pt").exists():
            return main(["train", "--resume", str(out)])
        return main(["train", *SIZE, *few, "--out", str(out)])

    assert run_forked(lambda: main(["train", *SIZE, *few, "--out", str(whole)])) == 0
    moments = random.Random(0)
    killed = 0
    while killed < n_kills:
        if run_forked(train, moments.uniform(0, 2)) is None:
            killed += 1
        if not out.exists():
            continue
        history = load_checkpoint(out).history
        if history and history[-1]["step"] == 60:
            assert same_weights(whole, out)
            shutil.rmtree(out)  # begin another run
    assert run_forked(train) == 0
    assert same_weights(whole, out)
    assert names_in(out) == names_in(whole)
    assert names_in(tmp_path / "runs") == ["run"]


@kills(3, 40)
def test_saving(n_kills, tmp_path):
    def action():
        for beta in (1.0, 2.0):
            for _ in range(5):
                model = one_step(TASK.transition, 2, 12, beta)
                save_checkpoint(tmp_path / "model", model, TASK)

    kill_often(action, n_kills, lambda: load_checkpoint(tmp_path / "model"))
    assert names_in(tmp_path) == ["model"]


@kills(2, 40)
def test_constructing(n_kills, tmp_path):
    words = ["construct", *SIZE, "--beta", "3", "--sequences", "50", "--out", str(tmp_path / "c")]
    kill_often(lambda: main(words), n_kills, lambda: load_checkpoint(tmp_path / "c"))
    assert names_in(tmp_path) == ["c"]


@kills(1, 20, *PROMISE)
def test_reporting(n_kills, tmp_path):
    save_checkpoint(tmp_path / "c", one_step(TASK.transition, 2, 12, 3.0), TASK)
    page = tmp_path / "out" / "report.html"
    words = ["report", str(tmp_path / "c"), "--quick", "--sequences", "32", "-o", str(page)]

    def check():
        assert page.read_text().rstrip().endswith("</html>")
        json.loads(page.with_suffix(".json").read_text())

    kill_often(lambda: main(words), n_kills, check)
    assert names_in(tmp_path / "out") == ["report.html", "report.json"]


@kills(1, 20, *PROMISE)
def test_reproducing(n_kills, tmp_path):
    out = tmp_path / "out"

    def check():
        assert (out / "dimensions.png").read_bytes().endswith(b"IEND\xaeB`\x82")
        assert (out / "dimensions.pdf").read_bytes().rstrip().endswith(b"%%EOF")
        assert (out / "dimensions.csv").read_text().endswith("\n")

    kill_often(lambda: main(["reproduce", "dimensions", "-o", str(out)]), n_kills, check)
    assert names_in(out) == ["dimensions.csv", "dimensions.pdf", "dimensions.png"]


@kills(1, 10, *PROMISE)
def test_building_the_zoo(n_kills, tmp_path):
    zoo = tmp_path / "zoo"
    changes = {"steps": 1000, "batch_size": 4, "evaluate_every": 250, "save_every": 50}
    entry = Entry(2, 12, changes=changes)
    whole = tmp_path / "whole"
    with entry_run(entry, whole) as run:
        run.train()
    sweeps = (tmp_path / f"sweep-{number}" for number in itertools.count())
    out = next(sweeps)

    def build():
        return build_zoo.build([entry], out, zoo)

    started = time.monotonic()
    assert run_forked(build) == 0
    seconds = time.monotonic() - started
    out = next(sweeps)
    moments = random.Random(0)
    killed = 0
    while killed < n_kills:
        if run_forked(build, moments.uniform(0, seconds)) is None:
            killed += 1
        else:
            out = next(sweeps)
        assert same_weights(whole, zoo / entry.name)
    assert run_forked(build) == 0
    assert same_weights(whole, zoo / entry.name)
    assert names_in(zoo) == [entry.name]
    (cell,) = (out / "cells").iterdir()
    assert not any(record.is_alive() for record in attempts.records(cell))
    assert not list(cell.glob("attempts/*/run"))
