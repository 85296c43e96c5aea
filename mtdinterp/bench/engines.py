"""Benchmark of sweeps: what an engine adds to the time of the cells themselves.

The reference runs the same cells with `xargs` alone, one fresh process per cell.
"""

import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from mtdinterp.bench.measure import Measurement
from mtdinterp.sweep.directory import write_sweep
from mtdinterp.sweep.engines.local import environment
from mtdinterp.sweep.grid import find_grid, read_grid
from mtdinterp.sweep.planning import plan

AT_ONCE = 2
REPEATS = 3
REFERENCE = "xargs"
AIMS = {"local": 1.05, "ray": 1.15}
"""The most that a sweep may take on each engine, as a multiple of the reference."""
START_RAY = f"""
import time
from mtdinterp.sweep.engines import Resources
begun = time.perf_counter()
from mtdinterp.sweep.engines.ray import RayEngine
RayEngine(Resources(most_at_once={AT_ONCE}), None).close()
print(time.perf_counter() - begun)
"""
QUICK_GRID = {
    "vocab_size": 3,
    "order": 2,
    "length": [16, 32],
    "steps": 200,
    "seed": [0, 1],
    "report": "none",
}
"""Shorter than `smoke`, so that overhead is a larger part of it."""


def sweep_engines(quick: bool) -> list[Measurement]:
    """The time of the grid `smoke` on the engines of this machine, over that of `xargs`."""
    engines = [name for name in AIMS if name != "ray" or find_spec("ray")]
    times: dict[str, list[float]] = {name: [] for name in (REFERENCE, *engines)}
    starts: list[float] = []
    for _ in range(1 if quick else REPEATS):
        for name, seconds in times.items():
            seconds.append(_seconds_of_grid(name, quick))
        if "ray" in engines:
            starts.append(_seconds_to_start_ray())
    reference = median(times[REFERENCE])
    lines = [Measurement(f"a grid by {REFERENCE}, {AT_ONCE} cells at once", reference, "s")]
    for name in engines:
        start = median(starts) if name == "ray" else 0.0
        ratio = (median(times[name]) - start) / reference
        label = f"the same by the engine {name}, over {REFERENCE}"
        lines.append(Measurement(label, ratio, "×", aim=AIMS[name], at_most=True))
        if start:
            label = f"start and end of {name} itself, subtracted above"
            lines.append(Measurement(label, start, "s"))
    return lines


def _seconds_of_grid(name: str, quick: bool) -> float:
    """Run the grid in a new folder by an engine or by the reference."""
    with tempfile.TemporaryDirectory(prefix="bench-grid-") as folder:
        grid = _grid_file(quick, Path(folder))
        out = Path(folder) / "sweep"
        if name == REFERENCE:
            sweep = write_sweep(out, plan(read_grid(grid), grid.parent), "")
            given = "\0".join(map(str, sweep.directories))
            words = ["xargs", "-0", "-n", "1", "-P", str(AT_ONCE), *_mtdinterp("sweep", "cell")]
        else:
            given = ""
            words = _mtdinterp("sweep", "run", str(grid), "--engine", name, "--out", str(out))
            words += ["--max-concurrent", str(AT_ONCE)]
        begun = time.perf_counter()
        subprocess.run(
            words,
            input=given,
            env=environment(threads=1),
            capture_output=True,
            text=True,
            check=True,
        )
        return time.perf_counter() - begun


def _grid_file(quick: bool, folder: Path) -> Path:
    if not quick:
        return find_grid("smoke")
    path = folder / "grid.json"
    path.write_text(json.dumps(QUICK_GRID))
    return path


def _mtdinterp(*words: str) -> list[str]:
    return [sys.executable, "-m", "mtdinterp", *words]


def _seconds_to_start_ray() -> float:
    """How long Ray takes to be imported, to start and to end again, in a fresh process."""
    command = [sys.executable, "-c", START_RAY]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(answer.stdout)
