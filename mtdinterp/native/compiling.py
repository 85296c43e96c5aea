"""Run the C++ compiler: find it, name what depends on it, and make the library."""

import errno
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from mtdinterp.native.failures import BuildError, DiskFull

SOURCES = Path(__file__).parent
COMMON_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fopenmp")
BY_HAND = ("-ffp-contract=fast", "-fno-tree-vectorize")
"""For sources with explicit vector code: their remaining loops are too short to vectorise."""
FLAGS = {
    "attention.cpp": BY_HAND,
    "step.cpp": BY_HAND,
    "rates.cpp": BY_HAND,
    "posterior.cpp": ("-ffp-contract=fast",),
    "stick_grid.cpp": ("-ffp-contract=fast",),
    "sampler.cpp": ("-ffp-contract=off",),  # must round as NumPy does
}
TARGETS = (("-march=native",), ("-mcpu=native",), ())
"""Flags that select this machine's instruction set, tried in this order."""
COMPILE_SECONDS = 300.0
QUESTION_SECONDS = 10.0
"""How long a program may take to tell its version or the processor's name."""
PROCESSOR_FILE = Path("/proc/cpuinfo")
FULL = (errno.ENOSPC, errno.EDQUOT)


class Compiler(NamedTuple):
    """A compiler's command, and the user's own flags for compiling and linking."""

    command: tuple[str, ...]
    extra: tuple[str, ...]


def find_compiler() -> Compiler:
    """The C++ compiler: $CXX, or the first of the usual names that exists."""
    extra = _words("MTDINTERP_CXXFLAGS")
    for command in (_words("CXX"), ("c++",), ("g++",), ("clang++",)):
        if command and shutil.which(command[0]):
            return Compiler(command, extra)
    raise BuildError("no C++ compiler found; install one or set CXX")


def library_key(compiler: Compiler) -> str:
    """A name for everything that the library depends on: a change of any part compiles it again."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.cpp")) + sorted(SOURCES.glob("*.h")):
        digest.update(source.read_bytes())
    version = _run([*compiler.command, "--version"], QUESTION_SECONDS).stdout
    settings = (COMMON_FLAGS, sorted(FLAGS.items()), TARGETS, compiler.extra)
    for part in (compiler.command, version, *settings, processor()):
        digest.update(repr(part).encode())
    return digest.hexdigest()[:20]


def compile_library(compiler: Compiler, scratch: Path) -> Path:
    """Compile the kernels.

    Args:
        compiler: the compiler.
        scratch: an empty directory for the library and the files of its compilation.

    Returns:
        The library, in `scratch`.

    Raises:
        BuildError: with the compiler's own words if no flags for this machine work.
    """
    failures = []
    for machine in TARGETS:
        try:
            return _link(compiler, machine, scratch)
        except DiskFull:
            raise
        except BuildError as error:
            failures.append(error)
    raise failures[-1]


def disk_full(directory: Path) -> DiskFull:
    """The error that says which disk is full."""
    return DiskFull(f"no space left in {directory}; free some, or set MTDINTERP_CACHE elsewhere")


def processor() -> str:
    """The processor's name and instruction sets, as far as the system reports them."""
    try:
        lines = PROCESSOR_FILE.read_text(errors="replace").splitlines()
    except OSError:
        return "\n".join((platform.machine(), platform.processor(), _processor_by_sysctl()))
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _processor_by_sysctl() -> str:
    """The same from macOS, where all Apple chips have one machine name; empty elsewhere."""
    try:
        names = ["machdep.cpu.brand_string", "hw.optional"]
        return _run(["sysctl", *names], QUESTION_SECONDS).stdout
    except BuildError:
        return ""


def _words(variable: str) -> tuple[str, ...]:
    """An environment variable as the words of a command."""
    value = os.environ.get(variable, "")
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        reason = str(error).lower()
        raise BuildError(f"{variable}: expected shell words, got {value!r} ({reason})") from error


def _link(compiler: Compiler, machine: tuple[str, ...], scratch: Path) -> Path:
    """The library in `scratch`, for the instruction set that the flags `machine` select."""
    objects = [_compile(compiler, name, machine, scratch) for name in FLAGS]
    library = scratch / "kernels.so"
    options = ["-shared", "-fopenmp", *compiler.extra, *map(str, objects), "-o", str(library)]
    _check_run([*compiler.command, *options], scratch)
    return library


def _compile(compiler: Compiler, name: str, machine: tuple[str, ...], scratch: Path) -> Path:
    """One object file. No flag relaxes arithmetic, so that NaN and infinity keep their meaning."""
    made = scratch / f"{name}.o"
    flags = (*COMMON_FLAGS, *FLAGS[name], *machine, *compiler.extra)
    _check_run([*compiler.command, *flags, "-c", str(SOURCES / name), "-o", str(made)], scratch)
    return made


def _check_run(command: list[str], scratch: Path) -> None:
    """Run the compiler with its temporary files in `scratch`, where a kill leaves nothing."""
    result = _run(command, COMPILE_SECONDS, {"TMPDIR": str(scratch)})
    if not result.returncode:
        return
    if any(os.strerror(number) in result.stderr for number in FULL):
        raise disk_full(scratch.parent)
    lines = [line for line in result.stderr.splitlines() if "error" in line] or ["no message"]
    raise BuildError(f"{command[0]} failed: {lines[0]}")


def _run(
    command: list[str], seconds: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Run a program to its end or to its time limit; without translated messages."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} did not finish within {seconds:g} s") from error
    except OSError as error:
        raise BuildError(f"{command[0]} did not run: {error.strerror}") from error
