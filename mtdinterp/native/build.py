"""Compile the C++ kernels once, into a private cache, and load them.

The library is keyed by sources, compiler, flags and processor, so a change of any of them builds
anew. The cache belongs to the user alone: a directory that others can write to is not used, because
what is loaded from it runs as the user. Without a compiler, or when anything fails, `load_library`
says so once and returns None, and the rest of the package goes on with its Python implementations.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

SOURCES = Path(__file__).parent
COMMON_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fopenmp")
BY_HAND = (
    "-ffp-contract=fast",
    "-fno-tree-vectorize",
)  # vectors are written out: what is left are short tails
FLAGS = {
    "attention.cpp": BY_HAND,
    "step.cpp": BY_HAND,
    "rates.cpp": BY_HAND,
    "posterior.cpp": ("-ffp-contract=fast",),
    "sampler.cpp": ("-ffp-contract=off",),  # must round as NumPy does
}
TARGETS = (("-march=native",), ("-mcpu=native",), ())
"""Ways to ask for this machine's own instructions, tried in this order."""

log = logging.getLogger("mtdinterp")


class BuildError(OSError):
    """The kernels could not be compiled, with the reason in one sentence."""


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """The compiled kernels, built if they are not there yet; None, said once, where that is not
    possible."""
    import torch  # noqa: F401  its OpenMP runtime must be the one that is loaded, or there are two

    try:
        return ctypes.CDLL(str(library_path()))
    except OSError as error:
        log.warning(
            "mtdinterp: compiled kernels are not available, using the slower ones (%s)", error
        )
        return None


def required_library() -> ctypes.CDLL:
    """The kernels, for code that is only reached where `use_kernels` said they are there."""
    library = load_library()
    if library is None:
        raise BuildError("the compiled kernels are not available")
    return library


def library_path() -> Path:
    """Where the library for this machine is, after building it if need be."""
    compiler = find_compiler()
    extra = tuple(shlex.split(os.environ.get("MTDINTERP_CXXFLAGS", "")))
    name = f"kernels-{_key(compiler, extra)}.so"
    directory = cache_directory()
    target = directory / name
    if not target.exists():
        with _lock(directory / f"{name}.lock"):
            if not target.exists():  # another process may have built it while this one waited
                print(
                    "mtdinterp: compiling kernels for this machine (once) …",
                    file=sys.stderr,
                    flush=True,
                )
                _build(compiler, extra, target)
    return target


def find_compiler() -> tuple[str, ...]:
    """The C++ compiler as a command: $CXX, or the first of the usual names."""
    for candidate in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        command = tuple(shlex.split(candidate))
        if command and shutil.which(command[0]):
            return command
    raise BuildError("no C++ compiler found; install one or set CXX")


def cache_directory() -> Path:
    """A directory that only this user can write to: the cache, or a fresh one where the cache
    cannot be used."""
    home = os.environ.get("MTDINTERP_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mtdinterp"
    )
    directory = Path(home)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return _private_directory(f"{directory} cannot be made: {error.strerror}")
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        return _private_directory(f"{directory} can be written by others")
    if not os.access(directory, os.W_OK) and not any(directory.glob("kernels-*.so")):
        return _private_directory(f"{directory} is read-only")
    return directory


@lru_cache(maxsize=1)
def _private_directory(reason: str) -> Path:
    """For this process alone, when the cache is no good."""
    log.warning("mtdinterp: kernels are compiled for this process only (%s)", reason)
    directory = tempfile.TemporaryDirectory(prefix="mtdinterp-")
    _kept.append(directory)
    return Path(directory.name)


_kept: list[tempfile.TemporaryDirectory] = []  # removed when the process ends


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process builds, the others wait; the lock ends with its holder, however that ends."""
    import fcntl

    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(compiler: tuple[str, ...], extra: tuple[str, ...], target: Path) -> None:
    """Compile beside the target and move it there when it is whole."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        failures = []
        for machine in TARGETS:
            try:
                objects = [
                    _compile(compiler, name, (*machine, *extra), Path(scratch)) for name in FLAGS
                ]
                library = Path(scratch) / "kernels.so"
                _run(
                    [
                        *compiler,
                        "-shared",
                        "-fopenmp",
                        *extra,
                        *map(str, objects),
                        "-o",
                        str(library),
                    ]
                )
                os.replace(library, target)
                return
            except BuildError as error:
                failures.append(str(error))
    raise BuildError(failures[-1])


def _compile(compiler: tuple[str, ...], name: str, flags: tuple[str, ...], scratch: Path) -> Path:
    """One object file. No flag that relaxes arithmetic: NaN and infinity must mean what they mean
    elsewhere."""
    made = scratch / f"{name}.o"
    _run(
        [*compiler, *COMMON_FLAGS, *FLAGS[name], *flags, "-c", str(SOURCES / name), "-o", str(made)]
    )
    return made


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} did not run: {error}") from error
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "error" in line] or ["no message"]
        raise BuildError(f"{command[0]} failed: {lines[0]}")


def _key(compiler: tuple[str, ...], extra: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.cpp")) + sorted(SOURCES.glob("*.h")):
        digest.update(source.read_bytes())
    version = subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True, check=False
    ).stdout
    for part in (
        compiler,
        version,
        COMMON_FLAGS,
        sorted(FLAGS.items()),
        TARGETS,
        extra,
        _processor(),
    ):
        digest.update(repr(part).encode())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """The processor's name and its instruction sets, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
