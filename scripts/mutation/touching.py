"""Which tests execute which line of the files to mutate, and how long they take.

Measured once by running the tests under coverage.py, with one context per test and phase, in the
processes that tests start too. The result is kept in .mutation/ for as long as neither the sources
nor the tests change.
"""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

CACHE = ".mutation"
"""Where measurements are kept, below the root; not in git."""


@dataclass
class Touching:
    """What is known about the tests."""

    seconds: dict[str, float] = field(default_factory=dict)
    """The time of every test that passes, with its fixtures."""
    failing: list[str] = field(default_factory=list)
    """Tests that fail without any mutant, and so cannot be used."""
    by_line: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    """For every file and line, the tests that execute it."""

    def tests_of_line(self, file: str, lines: tuple[int, ...]) -> set[str]:
        """The tests that execute one of the lines."""
        touched = self.by_line.get(file, {})
        found = {test for line in lines for test in touched.get(line, [])}
        return found & self.seconds.keys()

    def tests_of_file(self, file: str) -> set[str]:
        """The tests that execute any line of a file."""
        return self.tests_of_line(file, tuple(self.by_line.get(file, {})))

    def fastest_first(self, tests: set[str]) -> list[str]:
        """Tests in the order in which to run them: files of little work first, then quick tests
        first, so that fixtures shared within a file are made once."""
        work: dict[str, float] = {}
        for test in tests:
            work[_file(test)] = work.get(_file(test), 0.0) + self.seconds[test]
        return sorted(tests, key=lambda test: (work[_file(test)], _file(test), self.seconds[test]))


def _file(test: str) -> str:
    return test.partition("::")[0]


def measure(root: Path, files: list[str], tests: list[str]) -> Touching:
    """Run the tests once and record what they touch.

    Args:
        root: of the project.
        files: the files of interest, as paths below the root.
        tests: the arguments for pytest that select the tests.

    Returns:
        What the tests touch; from the cache if nothing has changed.

    Raises:
        RuntimeError: if pytest could not run at all.
    """
    kept = root / CACHE / f"{_digest(root, files, tests)}.json"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        command = [sys.executable, str(Path(__file__).with_name("recording.py")), str(kept)]
        request = json.dumps({"files": files, "tests": tests})
        result = subprocess.run(
            command, cwd=root, input=request, capture_output=True, text=True, check=False
        )
        if not kept.exists():
            raise RuntimeError(f"the tests could not be run:\n{result.stdout}{result.stderr}")
    content = json.loads(kept.read_text())
    by_line = {
        file: {int(line): found for line, found in lines.items()}
        for file, lines in content["by_line"].items()
    }
    return Touching(content["seconds"], content["failing"], by_line)


def _digest(root: Path, files: list[str], tests: list[str]) -> str:
    """A name for everything that the measurement depends on."""
    digest = hashlib.sha256(json.dumps([files, tests]).encode())
    folders = {part.parts[0] for part in map(Path, [*files, *tests])}
    for folder in sorted(folders):
        path = root / folder
        found = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in found:
            digest.update(os.fsencode(file.relative_to(root)))
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
