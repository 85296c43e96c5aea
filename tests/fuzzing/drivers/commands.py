"""Run the command line inside a case and judge how it ended."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from fuzzing.outcomes import DEFECT
from mtdinterp.cli import main

STAGE_END = " …"
"""How a line of progress ends; such lines are not part of the answer."""

WARNING = "mtdinterp: "
"""How a warning about a plugin begins; a refusal names the command too."""


class CommandRefused(Exception):
    """The sentence with which a command refused its input, with exit code 2."""


class Reached(BaseException):
    """The command accepted its input and is about to work; what follows is not tested here."""


def run_command(arguments: Sequence[str], warns: bool = False) -> str:
    """Run one command line.

    Args:
        arguments: the words after `mtdinterp`.
        warns: whether warnings about plugins may precede the sentence.

    Returns:
        A few words about success, or the description of a defect.

    Raises:
        CommandRefused: if it ended with exit code 2 and exactly one sentence.
    """
    reached = False
    with _captured() as captured:
        try:
            code: Any = main(arguments)
        except SystemExit as error:
            code = error.code
        except Reached:
            code = 0
            reached = True
    answer = [line for line in captured[1].splitlines() if not line.endswith(STAGE_END)]
    if warns:
        answer = [line for line in answer if not line.startswith(WARNING)] or answer[-1:]
    if code == 0:
        return "accepted" if reached else "done"
    if code != 2:
        return f"{DEFECT}exit code {code!r}: {captured[1][-300:]!r}"
    if len(answer) != 1 or not answer[0].startswith("mtdinterp"):
        return f"{DEFECT}sentence: expected one line, got {captured[1][-300:]!r}"
    if captured[0]:
        return f"{DEFECT}sentence: a refusal printed a result too: {captured[0][:100]!r}"
    raise CommandRefused(answer[0])


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """Catch what goes to standard output and standard error, also from compiled code."""
    texts: list[str] = []
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="strict")
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace")
        try:
            yield texts
        finally:
            for stream, file in ((sys.stdout, out), (sys.stderr, err)):
                stream.flush()
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
