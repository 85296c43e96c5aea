"""One forked process per mutant: the parent has imported the libraries, never the project.

A child makes the import system compile the mutant in place of its file and runs the tests until one
fails. Processes that tests start see the mutant through `hook/sitecustomize.py`. Whether a failure
means anything is decided in `controls`.
"""

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutation.hook.substitute import substitute
from mutation.mutants import Mutant

HOOK = Path(__file__).parent / "hook"
MEMORY = 4 * 2**30
"""Bytes that a mutant may use on top of what the parent has."""
LEAST_SECONDS = float(os.environ.get("MUTATION_LEAST_SECONDS", "20"))
COLLECTION_SECONDS = 300.0
"""For imports and collection, which a busy machine slows down."""
TIMES = 10.0
"""A test may take `LEAST_SECONDS` and `TIMES` as long as without a mutant."""
LEAST_SPACE = 2**30
"""Bytes that must be free for temporary files: tests fail on a full disk whatever the mutant."""
HARNESS_FAILED = 70
"""The exit code of a child in which an error left pytest itself."""
RUNNING = "running"
"""The file, in the folder of a child, that names the test that runs."""


@dataclass(frozen=True)
class Outcome:
    """What happened to a mutant."""

    killed: bool
    how: str
    """The test that failed, "timeout", "crash", or why no test ran."""
    seconds: float
    test: str = ""
    """The test that failed or ran when the process died; empty if none had started."""

    @property
    def passed(self) -> bool:
        """Whether all tests ran and passed."""
        return not self.killed and not self.how


@dataclass(frozen=True)
class Task:
    """A mutant and the tests to run on it, in order, with their usual times."""

    mutant: Mutant
    tests: list[str]
    seconds: dict[str, float]


class Chosen:
    """A pytest plugin: only the chosen tests in the chosen order, each with a time limit."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.folder = folder
        self.rank = {test: rank for rank, test in enumerate(task.tests)}
        self.seconds = task.seconds
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.rank]
        items[:] = sorted(chosen, key=lambda item: self.rank[item.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        (self.folder / RUNNING).write_text(nodeid)
        set_alarm(self.seconds.get(nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def set_alarm(usual_seconds: float) -> None:
    """Die by SIGALRM after a multiple of the usual time; no Python code is needed for that."""
    signal.setitimer(signal.ITIMER_REAL, LEAST_SECONDS + TIMES * usual_seconds)


def require_space(folder: Path) -> None:
    """Stop on a disk that is almost full.

    Args:
        folder: a folder on the disk.

    Raises:
        RuntimeError: if less than `LEAST_SPACE` is free.
    """
    free = shutil.disk_usage(folder).free
    if free < LEAST_SPACE:
        raise RuntimeError(
            f"{folder}: {free} bytes are free, and tests would fail for want of {LEAST_SPACE}"
        )


def run_all(root: Path, waiting: deque[Task], jobs: int) -> Iterator[tuple[Task, Outcome]]:
    """Run mutants side by side.

    Args:
        root: of the project.
        waiting: the mutants with their tests. The caller may add others while this runs.
        jobs: how many processes at a time.

    Yields:
        Each task with its outcome, in the order in which they end.

    Raises:
        RuntimeError: if there is too little space for temporary files.
    """
    running: dict[int, tuple[Task, Path, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.popleft()
                folder = Path(tempfile.mkdtemp(prefix="mutant-"))
                child = _fork(lambda task=task, folder=folder: _run_tests(root, task, folder))
                running[child] = (task, folder, time.monotonic())
            child, status = os.wait()
            task, folder, started = running.pop(child)
            _end(child)  # what the tests have started and left behind
            outcome = _outcome(status, folder, time.monotonic() - started)
            try:
                if outcome.killed:
                    require_space(folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            yield task, outcome
    finally:
        for child, (_, folder, _) in running.items():
            _end(child)
            shutil.rmtree(folder, ignore_errors=True)


def _end(child: int) -> None:
    """Kill a child and all processes of its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def _fork(work: Callable[[], None]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = HARNESS_FAILED
    try:
        os.setsid()
        work()
        code = 0
    finally:
        os._exit(code)


def _run_tests(root: Path, task: Task, folder: Path) -> None:
    """In the child: run the tests and leave the result in the folder."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    path = root / task.mutant.file
    source = task.mutant.source.encode()
    handed_on = folder / "mutant"
    handed_on.write_bytes(os.fsencode(path) + b"\n" + source)
    os.environ["MTDINTERP_MUTANT"] = str(handed_on)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HOOK), str(root)])
    sys.path.insert(0, str(root))
    os.chdir(root)
    substitute(str(path), source)
    signal.setitimer(signal.ITIMER_REAL, COLLECTION_SECONDS)
    chosen = Chosen(task, folder)
    files = list(dict.fromkeys(test.partition("::")[0] for test in task.tests))
    arguments = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-x", "--tb=short"]
    arguments += [
        f"--basetemp={folder / 'tests'}",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]
    code = pytest.main([*arguments, *files], plugins=[chosen])
    result = {"code": int(code), "failed": chosen.failed}
    (folder / "result").write_text(json.dumps(result))


def _outcome(status: int, folder: Path, seconds: float) -> Outcome:
    running = folder / RUNNING
    test = running.read_text() if running.exists() else ""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        how = "timeout" if number == signal.SIGALRM else f"crash ({signal.Signals(number).name})"
        return Outcome(True, how, seconds, test)
    result = folder / "result"
    if not result.exists():
        code = os.WEXITSTATUS(status)
        if code == HARNESS_FAILED:
            return Outcome(False, "pytest itself failed", seconds, test)
        return Outcome(True, f"crash (exit code {code})", seconds, test)
    content = json.loads(result.read_text())
    code = content["code"]
    if code == pytest.ExitCode.OK:
        return Outcome(False, "", seconds)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        return Outcome(False, "the tests are not collected any more", seconds)
    if code == pytest.ExitCode.USAGE_ERROR:
        # A conftest.py that does not import; the control of the file shows that it does otherwise.
        return Outcome(True, "import or collection", seconds)
    if code == pytest.ExitCode.INTERNAL_ERROR:
        return Outcome(False, "pytest itself failed", seconds, test)
    if content["failed"]:
        return Outcome(True, content["failed"], seconds, content["failed"])
    return Outcome(True, "interrupted" if test else "import or collection", seconds, test)
