"""Starting Ray on this machine and connecting to a cluster, leaving this process as it was."""

import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from mtdinterp.sweep.engines.base import EngineError
from mtdinterp.sweep.engines.local import THREAD_VARIABLES, environment

OBJECT_STORE = 80_000_000
"""Bytes of Ray's shared memory, close to the least that it accepts: tasks return small dicts."""
LONGEST_FOLDER = 40
"""Characters of the path of Ray's files; Ray appends to it the names of sockets, which may have
107 characters in all."""
PREFIX = "mtd-ray-"
"""How the names of our folders begin; the number of the process follows."""
ANSWER = 10.0
"""Seconds in which a cluster must answer; Ray itself would try for minutes."""
INSTALL = "--engine ray needs the ray package: pip install 'mtdinterp[ray]'"


def session_folder() -> Path:
    """A new folder for Ray's files, with a path that is short enough for sockets."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        remove_abandoned(Path(parent))
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
        if len(str(folder)) <= LONGEST_FOLDER:
            return folder
        folder.rmdir()
    raise EngineError("--engine ray needs a directory /tmp")


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of our own whose process was killed."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        is_ours = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
        if pid.isdigit() and is_ours and not _is_running(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
    """Whether there is a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def started(processors: int, threads: int) -> tuple[Any, Path]:
    """Start Ray on this machine, reachable from this machine only.

    Args:
        processors: how many CPUs Ray may hand out.
        threads: the most threads of a cell, for libraries that count them when they are loaded.

    Returns:
        The ray package, and the folder with Ray's files.
    """
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        # Despite its name, 0 confines Ray to the loopback interface on every system.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_TOKEN": _token(),
        **{name: environment(threads)[name] for name in THREAD_VARIABLES},
    }
    with _variables(settings), _own_signals():
        ray = _imported()
        folder = session_folder()
        try:
            ray.init(
                address="local",
                num_cpus=processors,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE,
                logging_level=logging.ERROR,
                log_to_driver=False,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder),
                # The shared memory is hardly used, and /dev/shm may be too small for it.
                _plasma_directory=str(folder),
            )
        # Ray reports a failed start as whatever went wrong first.
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise EngineError(f"Ray did not start: {_first_line(error)}") from error
        except BaseException:  # such as Ctrl-C
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return ray, folder


def connected(address: str) -> Any:
    """Connect to a Ray cluster.

    Returns:
        The ray package.
    """
    # With `uv run`, Ray would copy the working directory to every worker.
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    with _variables(settings), _own_signals():
        ray = _imported()
        _check_answer(address)
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        # Ray has no common type for an address that is wrong or does not answer.
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            reason = _first_line(error)
            raise EngineError(f"cannot connect to Ray at {address}: {reason}") from error
    return ray


def silenced(ray: Any) -> Callable[[], None]:
    """Keep Ray from reporting lost workers on standard output, which is for the command's result.

    Ray has no setting for these messages. What they say is in the cells' files.

    Args:
        ray: the ray package.

    Returns:
        A function that lets Ray print again.
    """
    worker = ray._private.worker
    before = getattr(worker, "print_to_stdstream", None)
    if before is None:
        return lambda: None
    worker.print_to_stdstream = lambda *arguments, **options: None

    def undo() -> None:
        worker.print_to_stdstream = before

    return undo


def _check_answer(address: str) -> None:
    """Refuse an address at which nothing listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # such as "auto", which Ray looks up
    try:
        socket.create_connection((host, int(port)), ANSWER).close()
    except (OSError, OverflowError) as error:
        raise EngineError(f"cannot connect to Ray at {address}: {error}") from error


def _imported() -> Any:
    """The ray package."""
    try:
        import ray
    except ImportError as error:
        raise EngineError(INSTALL) from error
    return ray


@cache
def _token() -> str:
    """The secret of a Ray of our own, so that it writes none into the home directory."""
    return secrets.token_hex(16)


@contextmanager
def _variables(settings: Mapping[str, str]) -> Iterator[None]:
    """A context with environment variables, which processes that start in it keep."""
    before = dict(os.environ)
    for name, value in settings.items():
        if name in THREAD_VARIABLES:
            os.environ[name] = value
        else:
            os.environ.setdefault(name, value)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _own_signals() -> Iterator[None]:
    """A context that keeps the handler of SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _first_line(error: BaseException) -> str:
    """The first line of an error."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
