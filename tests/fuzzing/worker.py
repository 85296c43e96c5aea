"""The client's side of fuzzing: starts the server and asks it about cases."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fuzzing.outcomes import Outcome

TESTS = Path(__file__).parents[1]


class Worker:
    """A server process that reads cases within limits. Use it as a context manager."""

    def __init__(self, home: Path) -> None:
        """
        Args:
            home: a directory for the files of the server.
        """
        paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        settings = {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "HOME": str(home),
            # Forked children must not wait for threads that only their parent had.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            # Compiling kernels is not what is tested here.
            "MTDINTERP_KERNEL": "eager",
            "MPLBACKEND": "agg",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuzzing.server", str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **settings},
            text=True,
        )
        self.outline: dict[str, Any] = self._reply()
        """The structure of the undamaged files, for strategies that change parts of them."""

    def run(self, reader: str, case: Any) -> Outcome:
        """Read one case.

        Args:
            reader: the name of the reader.
            case: the description of the input.

        Returns:
            What came of it.
        """
        assert self.process.stdin is not None
        print(json.dumps({"reader": reader, "case": case}), file=self.process.stdin, flush=True)
        return Outcome(**self._reply())

    def _reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fuzzing server ended with status {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the server."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
