"""Make imports of one file compile another text, without touching the file."""

import os
from importlib.machinery import SourceFileLoader


def substitute(path: str, source: bytes) -> None:
    """Let every later import of a file in this process see another source.

    This is done where the file is read, so that whatever else looks at the source on import, such
    as the run-time type checks of the tests, works on the mutant too.

    Args:
        path: the file.
        source: the text to compile instead of its content.
    """
    mutated = os.path.realpath(path)
    read = SourceFileLoader.get_data
    look_up = SourceFileLoader.path_stats

    def get_data(self: SourceFileLoader, asked: str) -> bytes:
        return source if os.path.realpath(asked) == mutated else read(self, asked)

    def path_stats(self: SourceFileLoader, asked: str) -> object:
        if os.path.realpath(asked) == mutated:
            # Without a time of change the import system neither reads nor writes cached bytecode.
            raise OSError("a mutant has no file")
        return look_up(self, asked)

    SourceFileLoader.get_data = get_data  # type: ignore[method-assign]
    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign, assignment]
