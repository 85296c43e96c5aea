"""A compiler that does nothing but copy a tiny library, for tests of everything around it."""

import os
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mtdinterp.native import build, cache

COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo stub; exit 0; fi
for last; do :; done
case "$*" in
    *-shared*) echo built >> "{log}"; . "{directory}/before_link"; cp "{library}" "$last";;
    *) : > "$last";;
esac
"""


@dataclass(frozen=True)
class StubCompiler:
    """A stub in a directory of its own."""

    directory: Path
    library: Path
    """The library that it copies."""

    @property
    def builds(self) -> int:
        """How many libraries it has made."""
        log = self.directory / "log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def before_link(self, script: str) -> None:
        """Let the stub run shell commands before it makes a library."""
        (self.directory / "before_link").write_text(script)

    def write(self) -> None:
        """Write the stub."""
        self.before_link("")
        log = self.directory / "log"
        script = COMPILER.format(log=log, library=self.library, directory=self.directory)
        write_program(self.directory / "stub", script)


def tiny_library(directory: Path) -> Path:
    """A library whose only function, `answer`, returns 42."""
    source = directory / "tiny.c"
    library = directory / "tiny.so"
    source.write_text("int answer(void) { return 42; }\n")
    options = ["-x", "c", str(source), "-shared", "-fPIC", "-nostdlib", "-o", str(library)]
    subprocess.run(["c++", *options], check=True)
    return library


def write_program(path: Path, script: str) -> None:
    """Write a script that can be executed."""
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def forget() -> None:
    """Forget the library that is loaded and the temporary directory of this process."""
    build.load_library.cache_clear()
    cache.private_directory.cache_clear()


def names(directory: Path) -> list[str]:
    """What is in a directory, without locks and other hidden details."""
    return sorted(name for name in os.listdir(directory) if not name.endswith(".lock"))
