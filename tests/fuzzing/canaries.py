"""Canaries: code that leaves a mark if anything runs it, and a watch for programs and imports.

A module on the import path creates a file when it is imported, and pickles create a file when they
are loaded. No reader may make either of them sing.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

MODULE = "mtdinterp_fuzzing_canary"
"""A module that can be imported by name and leaves a mark when it is."""
PICKLE_MARK = "pickle"
SUSPICIOUS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
    "subprocess.Popen",
    "socket.connect",
    "webbrowser.open",
    "ctypes.dlopen",
)
"""Events of Python that no reader of data causes."""
KNOWN_FOLDERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    Path(__file__).parents[2],
)
"""Where modules may come from that a reader imports when it needs them."""
PLUGIN_PREFIX = "_mtdinterp_plugin_"
PROVENANCE = "git"
"""The one program that pages run themselves, to name the version that made them."""

_home = Path()


def plant(home: Path) -> None:
    """Put the canaries into a directory and on the import path of this process."""
    global _home
    _home = home
    (home / "marks").mkdir(parents=True)
    source = f"open({str(home / 'marks' / 'import')!r}, 'w').close()\n"
    (home / f"{MODULE}.py").write_text(source)
    sys.path.append(str(home))


def mark(name: str) -> Path:
    """The file that a canary of this name creates."""
    return _home / "marks" / name


def marks() -> list[str]:
    """The canaries that have sung."""
    return sorted(os.listdir(_home / "marks"))


def clear() -> None:
    """Remove all marks."""
    for name in marks():
        mark(name).unlink()


def foreign_modules(names: set[str]) -> list[str]:
    """Those of newly imported modules that belong neither to Python nor to an installed package."""
    foreign = []
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        # A plugin file that the user named is run, and becomes a module of such a name.
        if file is None or name.startswith(PLUGIN_PREFIX):
            continue
        if not any(Path(file).is_relative_to(folder) for folder in KNOWN_FOLDERS):
            foreign.append(name)
    return sorted(foreign)


def watch() -> None:
    """Mark every program that is started and every connection that is opened from here on."""

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        is_provenance = event == "subprocess.Popen" and arguments[0] == PROVENANCE
        # Without a name, this is the C library of the process itself, asked for `renameat2`.
        is_own_library = event == "ctypes.dlopen" and arguments[0] is None
        if event in SUSPICIOUS and not is_provenance and not is_own_library:
            Path(mark(event)).touch()

    sys.addaudithook(note)
