"""Finding the processes of a sweep that runs, and checking that each cell was finished once."""

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from mtdinterp.checkpoint_files import CheckpointError
from mtdinterp.sweep import attempts
from mtdinterp.sweep.driving import Driver
from mtdinterp.sweep.running import run_cell
from mtdinterp.sweep.status import FINISHED
from mtdinterp.training.state import read_state
from sweep.small import weights_of

LONG_ENOUGH = {"steps": 600, "evaluate_every": 300, "save_every": 20}
"""Settings for a training run of a few seconds, which can be disturbed after a checkpoint."""


def die_in_attempt(cell, step=0, stopping=lambda: False):
    """Begin an attempt in another process and kill it there."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        with attempts.attempting(cell, step, "test", most_crashes=99, stopping=stopping):
            os.write(told, b"x")
            time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(told)


def drive(sweep, engine, stopping=lambda: False):
    """Run a sweep; returns the state of every cell."""
    found = Driver(sweep, engine, lambda states: None, stopping).run()
    return {name: status.state for name, status in found.items()}


def check_finished_once(sweep, states):
    """Every cell is finished, and only one of its attempts finished it; returns the weights."""
    assert set(states.values()) == {FINISHED}, states
    for directory in sweep.directories:
        assert endings(directory).count(attempts.DONE) == 1, endings(directory)
    return weights_of(sweep)


def weights_in_this_process(sweep):
    """Run all cells in this process; returns their weights' checksums."""
    for directory in sweep.directories:
        assert run_cell(directory).how == "done"
    return weights_of(sweep)


def endings(directory):
    """How the attempts of a cell ended; None for those whose process died."""
    records = attempts.records(directory)
    return [record.end["how"] if record.end else None for record in records]


def in_training(sweep):
    """The running attempts that have written a checkpoint after their first steps."""
    found = []
    for directory in sweep.directories:
        newest = attempts.newest(directory)
        if newest is None or newest.owner is None:
            continue
        with suppress(CheckpointError):
            step = read_state(newest.path / attempts.RUN)["step"]
            if step > newest.owner.step and newest.is_alive():
                found.append(newest)
    return found


def parent_of(pid):
    """The parent of a process; 0 if there is no such process."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("PPid:"):
                return int(line.split()[1])
    return 0


@contextmanager
def meanwhile(disturb):
    """Call `disturb` every few milliseconds in a thread until it returns true, or the context ends.

    An error in it is raised at the end of the context.
    """
    over = threading.Event()
    errors = []

    def work():
        try:
            while not over.is_set() and not disturb():
                time.sleep(0.02)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="disturber")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def kill(pid, number):
    """Send a signal to a process that may have just ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
