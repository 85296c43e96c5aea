"""Compile the C++ kernels once, into a private cache, and load them.

The name of the library depends on sources, compiler, flags and processor, so that a change of any
of them compiles it again. A cache directory that other users can write to is not used, because code
loaded from it runs with the user's rights. Without a compiler, or if compilation fails,
`load_library` logs one warning and returns None, and the package uses its Python implementations.
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
BY_HAND = ("-ffp-contract=fast", "-fno-tree-vectorize")
"""For sources with explicit vector code: their remaining loops are too short to vectorise."""
FLAGS = {
    "attention.cpp": BY_HAND,
    "step.cpp": BY_HAND,
    "rates.cpp": BY_HAND,
    "posterior.cpp": ("-ffp-contract=fast",),
    "sampler.cpp": ("-ffp-contract=off",),  # must round as NumPy does
}
TARGETS = (("-march=native",), ("-mcpu=native",), ())
"""Flags that select this machine's instruction set, tried in this order."""

log = logging.getLogger("mtdinterp")


class BuildError(OSError):
    """The kernels could not be compiled; the message gives the reason in one sentence."""


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """The compiled kernels, compiled first if necessary; None, with a warning, if impossible."""
    # Torch comes first, so that the kernels use its OpenMP runtime instead of loading a second one.
    import torch  # noqa: F401

    try:
        return ctypes.CDLL(str(library_path()))
    except OSError as error:
        log.warning(
            "mtdinterp: compiled kernels are not available, using the slower ones (%s)", error
        )
        return None


def required_library() -> ctypes.CDLL:
    """The kernels, for code that runs only if `use_kernels` is true."""
    library = load_library()
    if library is None:
        raise BuildError("the compiled kernels are not available")
    return library


def library_path() -> Path:
    """The path of the library for this machine, compiled first if necessary."""
    compiler = find_compiler()
    extra = tuple(shlex.split(os.environ.get("MTDINTERP_CXXFLAGS", "")))
    name = f"kernels-{_key(compiler, extra)}.so"
    directory = cache_directory()
    target = directory / name
    if not target.exists():
        with _lock(directory / f"{name}.lock"):
            # Another process may have compiled it while this one waited for the lock.
            if not target.exists():
                print(
                    "mtdinterp: compiling kernels for this machine (once) …",
                    file=sys.stderr,
                    flush=True,
                )
                _build(compiler, extra, target)
    return target


def find_compiler() -> tuple[str, ...]:
    """The command of the C++ compiler: $CXX, or the first of the usual names that exists."""
    for candidate in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        command = tuple(shlex.split(candidate))
        if command and shutil.which(command[0]):
            return command
    raise BuildError("no C++ compiler found; install one or set CXX")


def cache_directory() -> Path:
    """A directory that only this user can write to: the cache, or a temporary one without it."""
    chosen = os.environ.get("MTDINTERP_CACHE")
    if chosen:
        directory = Path(chosen)
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(caches) / "mtdinterp"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return _private_directory(f"{directory} cannot be created: {error.strerror}")
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        return _private_directory(f"{directory} can be written by others")
    if not os.access(directory, os.W_OK) and not any(directory.glob("kernels-*.so")):
        return _private_directory(f"{directory} is read-only")
    return directory


@lru_cache(maxsize=1)
def _private_directory(reason: str) -> Path:
    """A temporary directory for this process only, if the cache cannot be used."""
    log.warning("mtdinterp: kernels are compiled for this process only (%s)", reason)
    directory = tempfile.TemporaryDirectory(prefix="mtdinterp-")
    _kept.append(directory)
    return Path(directory.name)


_kept: list[tempfile.TemporaryDirectory] = []
"""Temporary directories, which are removed when the process ends."""


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process compile while others wait; the lock ends when its holder does."""
    import fcntl

    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(compiler: tuple[str, ...], extra: tuple[str, ...], target: Path) -> None:
    """Compile in a directory next to the target and move the complete library there."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        failures = []
        for machine in TARGETS:
            try:
                library = _link(compiler, (*machine, *extra), extra, Path(scratch))
            except BuildError as error:
                failures.append(str(error))
                continue
            os.replace(library, target)
            return
    raise BuildError(failures[-1])


def _link(
    compiler: tuple[str, ...], flags: tuple[str, ...], extra: tuple[str, ...], scratch: Path
) -> Path:
    """The library in `scratch`; sources are compiled with `flags` and linked with `extra`."""
    objects = [str(_compile(compiler, name, flags, scratch)) for name in FLAGS]
    library = scratch / "kernels.so"
    _run([*compiler, "-shared", "-fopenmp", *extra, *objects, "-o", str(library)])
    return library


def _compile(compiler: tuple[str, ...], name: str, flags: tuple[str, ...], scratch: Path) -> Path:
    """One object file. No flag relaxes arithmetic, so that NaN and infinity keep their meaning."""
    made = scratch / f"{name}.o"
    source = str(SOURCES / name)
    _run([*compiler, *COMMON_FLAGS, *FLAGS[name], *flags, "-c", source, "-o", str(made)])
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
    asked = [*compiler, "--version"]
    version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    settings = (COMMON_FLAGS, sorted(FLAGS.items()), TARGETS, extra)
    for part in (compiler, version, *settings, _processor()):
        digest.update(repr(part).encode())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """The processor's name and instruction sets, as far as the system reports them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
