"""The process in which readers read damaged input: one forked child per case, with limits.

Run as `python -m fuzzing.server DIRECTORY`. It imports everything once, makes the files that cases
damage, and then answers requests, one JSON object per line. A child reports when its files are
built; from then on it has `MOST_SECONDS` and `MOST_BYTES` of additional memory. A child that
crashes or hangs is noticed here, so every failure belongs to exactly one case.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzzing import canaries
from fuzzing.outcomes import DEFECT, LOADED, REFUSED, Outcome, complaint

MOST_SECONDS = 5.0
MOST_BYTES = 10**9
BUILDING_SECONDS = 120.0
"""How long it may take to build the input, which is not the reader's fault."""
DRIVERS = {
    "config": "fuzzing.drivers.checkpoints",
    "weights": "fuzzing.drivers.checkpoints",
    "history": "fuzzing.drivers.checkpoints",
    "training": "fuzzing.drivers.training",
    "files": "fuzzing.drivers.file_kinds",
    "plugins": "fuzzing.drivers.plugins",
    "transition": "fuzzing.drivers.transition",
    "workbench": "fuzzing.drivers.workbench",
    "command": "fuzzing.drivers.command",
    "faults": "fuzzing.drivers.faults",
}
"""The module that builds and reads the cases of each reader: it has `build` and `read`."""


def main() -> None:
    """Serve requests from standard input until it ends."""
    home = Path(sys.argv[1])
    canaries.plant(home / "canaries")
    drivers = {name: importlib.import_module(module) for name, module in DRIVERS.items()}
    materials = _made(home)
    for driver in dict.fromkeys(drivers.values()):
        driver.prepare(materials)
    # Children share the memory of this process until they write to it; the collector would.
    gc.collect()
    gc.freeze()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing but replies goes to the client
    print(json.dumps(materials.outline), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        reader = request["reader"]
        outcome = run_case(drivers[reader], reader, request["case"], materials)
        print(json.dumps(outcome.to_dict()), file=replies, flush=True)


def _made(home: Path) -> Any:
    """The files that cases damage, made in a child: this process must not start threads."""
    from fuzzing.materials import Materials, make

    child = os.fork()
    if child == 0:
        code = 1
        try:
            make(home / "materials")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit("fuzzing: the files to damage could not be made")
    return Materials(home / "materials")


def run_case(driver: Any, reader: str, case: Any, materials: Any) -> Outcome:
    """Run one case in a child and say what came of it.

    Args:
        driver: the module of the reader.
        reader: the name of the reader.
        case: the description of the input.
        materials: the undamaged files.

    Returns:
        The outcome.
    """
    with _directory() as directory, tempfile.TemporaryFile() as report:
        ready, told = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(ready)
            _run_child(driver, reader, case, materials, directory, told, report.fileno())
        os.close(told)
        timed_out = _wait(child, ready)
        os.close(ready)
        _, status, usage = os.wait4(child, 0)
        report.seek(0)
        written = report.read()
        outcome = _judged(status, timed_out, written, usage.ru_maxrss * 1024)
    marks = canaries.marks()
    if marks:
        canaries.clear()
        return Outcome(DEFECT, f"executed: {', '.join(marks)}", outcome.seconds, outcome.bytes)
    return outcome


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """A directory for one case, removed afterwards whatever is in it."""
    path = Path(tempfile.mkdtemp(prefix="fuzzing-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            for folder in [path, *(entry for entry in path.rglob("*") if entry.is_dir())]:
                folder.chmod(0o700)
            shutil.rmtree(path)


def _wait(child: int, ready: int) -> bool:
    """Wait for a child's two reports; returns whether it was killed because it took too long.

    The child writes one byte when its input is built, and closes the pipe when it ends.
    """
    limit = BUILDING_SECONDS
    while True:
        readable, _, _ = select.select([ready], [], [], limit)
        if not readable:
            os.kill(child, signal.SIGKILL)
            return True
        if not os.read(ready, 1):
            return False
        limit = MOST_SECONDS


def _judged(status: int, timed_out: bool, written: bytes, peak: int) -> Outcome:
    """The outcome of a child that has ended."""
    if timed_out:
        return Outcome(DEFECT, f"timeout: more than {MOST_SECONDS:g} s", MOST_SECONDS, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Outcome(DEFECT, f"crash: {name}", 0.0, 0)
    try:
        found = json.loads(written)
    except ValueError:
        return Outcome(DEFECT, f"crash: it ended with status {status} and no report", 0.0, 0)
    used = max(0, peak - found.pop("start"))
    outcome = Outcome(found["kind"], found["detail"], found["seconds"], used)
    if outcome.bytes > MOST_BYTES and outcome.kind != DEFECT:
        return Outcome(DEFECT, f"memory: {used / 1e9:.1f} GB", outcome.seconds, used)
    return outcome


def _run_child(
    driver: Any, reader: str, case: Any, materials: Any, directory: Path, told: int, report: int
) -> None:
    """Build the input, read it within limits, write the report, and end the process."""
    code = 1
    terminal = os.dup(2)
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.chdir(directory)
        driver.build(reader, case, directory, materials)
        known = set(sys.modules)
        start = _resident_bytes()
        _limit()
        os.write(told, b"!")
        began = time.perf_counter()
        kind, detail = _read(driver, reader, case, directory, materials)
        seconds = time.perf_counter() - began
        foreign = canaries.foreign_modules(set(sys.modules) - known)
        if foreign:
            kind, detail = DEFECT, f"executed: imported {', '.join(foreign)}"
        found = {"kind": kind, "detail": detail, "seconds": seconds, "start": start}
        # The address space may be exhausted; what is left of it is enough for this.
        os.write(report, json.dumps(found).encode())
        code = 0
    except BaseException:
        os.write(terminal, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _limit() -> None:
    """Limit the memory, the size of files and core dumps from here on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _read(driver: Any, reader: str, case: Any, directory: Path, materials: Any) -> tuple[str, str]:
    """What a reader says to a case: the kind of the outcome and its detail."""
    canaries.watch()
    try:
        detail = driver.read(reader, case, directory, materials)
    except driver.REFUSALS as error:
        sentence = str(error).replace(str(directory), "DIR")
        wrong = complaint(sentence)
        if wrong:
            return DEFECT, f"sentence: {wrong}: {type(error).__name__}: {sentence[:300]!r}"
        return REFUSED, f"{type(error).__name__}: {sentence}"
    except MemoryError as error:
        return DEFECT, f"memory: MemoryError{_place(error)}"
    except BaseException as error:
        if "DefaultCPUAllocator" in str(error):
            return DEFECT, f"memory: {str(error)[:200]}{_place(error)}"
        return DEFECT, f"traceback: {type(error).__name__}: {str(error)[:300]}{_place(error)}"
    return (LOADED, detail) if not detail.startswith(DEFECT) else (DEFECT, detail[len(DEFECT) :])


def _place(error: BaseException) -> str:
    """The innermost place of the project where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/mtdinterp/" in frame.filename]
    place = (own or list(frames))[-1]
    return f" ({Path(place.filename).name}:{place.lineno})"


if __name__ == "__main__":
    main()
