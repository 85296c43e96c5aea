"""What shows that a failing test is the fault of the mutant.

Tests run on mutants in a forked process, in another order, and with limits of memory and time. A
test that fails there without any mutant would count as a kill every time. So the unchanged source
runs in the same way:

    per file    with all tests that touch the file, before any of its mutants
    per kill    with the tests of the mutant up to the one that failed, once per failing test

A test that fails in such a control is left out, and the mutants that it killed run again.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mutation.mutants import Mutant, unchanged
from mutation.running import Outcome, Task, run_all


@dataclass
class Controls:
    """What the controls have shown so far."""

    files: set[str] = field(default_factory=set)
    """Files that survived unchanged, with all of their tests."""
    tests: set[str] = field(default_factory=set)
    """Tests that killed a mutant and passed on the unchanged source."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tests that failed on the unchanged source, and how."""
    runs: int = 0
    """How often unchanged source was run."""

    def leave_out(self, outcome: Outcome) -> None:
        """Use the failing test of a control no more.

        Args:
            outcome: of the control.

        Raises:
            RuntimeError: if no test is to blame, so that mutants cannot be run at all.
        """
        if not outcome.test:
            raise RuntimeError(f"the unchanged source does not run like a mutant: {outcome.how}")
        self.left_out[outcome.test] = outcome.how

    def usable(self, task: Task) -> Task:
        """A task without the tests that were left out."""
        tests = [test for test in task.tests if test not in self.left_out]
        return Task(task.mutant, tests, task.seconds)

    def __str__(self) -> str:
        return (
            f"{self.runs} controls: {len(self.files)} unchanged files survived all of their tests, "
            f"{len(self.tests)} killing tests pass on the unchanged source, "
            f"{len(self.left_out)} tests left out"
        )


def control_files(root: Path, tasks: list[Task], jobs: int, controls: Controls) -> None:
    """Run unchanged files until each survives, leaving out the tests that fail.

    Args:
        root: of the project.
        tasks: for every file a task with all tests that touch it; see `task_unchanged`.
        jobs: how many processes at a time.
        controls: what is found is noted here.

    Raises:
        RuntimeError: if a file does not survive and no test is to blame.
    """
    waiting = deque(tasks)
    for task, outcome in run_all(root, waiting, jobs):
        controls.runs += 1
        if outcome.passed:
            controls.files.add(task.mutant.file)
            continue
        controls.leave_out(outcome)
        remaining = controls.usable(task)
        if remaining.tests:
            waiting.append(remaining)


def run_controlled(
    root: Path, tasks: list[Task], jobs: int, controls: Controls
) -> Iterator[tuple[Mutant, Outcome]]:
    """Run mutants, and run unchanged source for every test that kills one.

    Args:
        root: of the project.
        tasks: the mutants with their tests.
        jobs: how many processes at a time.
        controls: what is found is noted here.

    Yields:
        Each mutant with its outcome, once the outcome is certain.

    Raises:
        RuntimeError: if the unchanged source does not run at all.
    """
    waiting: deque[Task] = deque()
    dropped: deque[Task] = deque()
    _sort_in([controls.usable(task) for task in tasks], waiting, dropped)
    unconfirmed: dict[str, list[tuple[Task, Outcome]]] = {}
    confirming: dict[int, str] = {}
    for task, outcome in run_all(root, waiting, jobs):
        confirmed = confirming.pop(id(task), "")
        if confirmed:
            controls.runs += 1
            kills = unconfirmed.pop(confirmed)
            if outcome.passed:
                controls.tests.add(confirmed)
                yield from ((killed.mutant, how) for killed, how in kills)
            else:
                controls.leave_out(outcome)
                _sort_in([controls.usable(killed) for killed, _ in kills], waiting, dropped)
        elif not outcome.killed or not outcome.test or outcome.test in controls.tests:
            # Without a test, the import or collection failed, which the file's control did not.
            yield task.mutant, outcome
        elif outcome.test in controls.left_out:
            _sort_in([controls.usable(task)], waiting, dropped)
        elif outcome.test in unconfirmed:
            unconfirmed[outcome.test].append((task, outcome))
        else:
            unconfirmed[outcome.test] = [(task, outcome)]
            until = task.tests[: task.tests.index(outcome.test) + 1]
            control = task_unchanged(root, task.mutant.file, until, task.seconds)
            confirming[id(control)] = outcome.test
            waiting.appendleft(control)
    for task in dropped:
        yield task.mutant, Outcome(False, "all tests that touch the line were left out", 0.0)


def _sort_in(tasks: list[Task], waiting: deque[Task], dropped: deque[Task]) -> None:
    """Let tasks wait, except those without tests: pytest would run all tests for them."""
    for task in tasks:
        (waiting if task.tests else dropped).append(task)


def task_unchanged(root: Path, file: str, tests: list[str], seconds: dict[str, float]) -> Task:
    """The control of a file: its own source in place of a mutant."""
    return Task(unchanged(file, (root / file).read_text()), tests, seconds)
