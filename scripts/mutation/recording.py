"""Run tests under coverage.py and write down which lines each of them executes.

Started by `touching.measure` as a process of its own: `recording.py RESULT`, with the request on
standard input.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

SETTINGS = """
[run]
data_file = {data}
parallel = true
sigterm = true
context = ${{PYTEST_CURRENT_TEST-}}
include =
    {files}
"""
"""For processes that a test starts; pytest names the current test in the environment."""


class Recorder:
    """A pytest plugin that opens one context per test and phase, named as pytest does.

    What the import of a test file executes counts as set-up of all its tests.
    """

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.seconds: dict[str, float] = {}
        self.failing: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        self.measured.switch_context(f"{collector.nodeid} (setup)")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self.measured.switch_context(f"{item.nodeid} (setup)")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.measured.switch_context(f"{item.nodeid} (call)")
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self.seconds.get(report.nodeid, 0.0)
        self.seconds[report.nodeid] = before + report.duration
        if report.failed:
            self.failing.add(report.nodeid)


def tests_by_line(data: coverage.CoverageData, file: str, tests: list[str]) -> dict[int, list[str]]:
    """The tests that execute each line of a file.

    A line that a fixture executes counts for all tests of the same file, since fixtures are shared.
    """
    by_test_file: dict[str, list[str]] = {}
    for test in tests:
        by_test_file.setdefault(test.partition("::")[0], []).append(test)
    lines: dict[int, list[str]] = {}
    for line, contexts in data.contexts_by_lineno(file).items():
        found: set[str] = set()
        for context in contexts:
            test, _, phase = context.rpartition(" ")
            if phase == "(setup)":
                found |= set(by_test_file.get(test.partition("::")[0], []))
            elif test:
                found.add(test)
        lines[line] = sorted(found)
    return lines


def main() -> None:
    request = json.load(sys.stdin)
    root = Path.cwd()
    result = Path(sys.argv[1])
    paths = {file: str(root / file) for file in request["files"]}
    sys.path.insert(0, str(root))
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "coveragerc"
        data = Path(folder) / "data"
        settings.write_text(SETTINGS.format(data=data, files="\n    ".join(paths.values())))
        os.environ["COVERAGE_PROCESS_START"] = str(settings)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        measured = coverage.Coverage(str(data), data_suffix="tests", include=[*paths.values()])
        recorder = Recorder(measured)
        measured.start()
        # Not part of pytest's options: xdist would run the tests in other processes.
        arguments = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q", *request["tests"]]
        code = pytest.main(arguments, plugins=[recorder])
        measured.stop()
        measured.save()
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            sys.exit(int(code))
        together = coverage.Coverage(str(data), config_file=False)
        together.combine([folder])
        passing = [test for test in recorder.seconds if test not in recorder.failing]
        content = {
            "seconds": {test: recorder.seconds[test] for test in passing},
            "failing": sorted(recorder.failing),
            "by_line": {
                file: tests_by_line(together.get_data(), path, passing)
                for file, path in paths.items()
            },
        }
    written = result.with_suffix(".part")
    written.write_text(json.dumps(content))
    written.replace(result)


if __name__ == "__main__":
    main()
