"""The groups of benchmarks by name; each returns lines of the table."""

from collections.abc import Callable

from mtdinterp.bench.engines import sweep_engines
from mtdinterp.bench.estimation import posterior, sampler
from mtdinterp.bench.hooks import hooks
from mtdinterp.bench.measure import Measurement
from mtdinterp.bench.probing import all_probes
from mtdinterp.bench.sweeping import sweep
from mtdinterp.bench.training import long_step, training_step
from mtdinterp.bench.workbench import click_to_bars
from mtdinterp.checks import check_option

GROUPS: dict[str, Callable[[bool], list[Measurement]]] = {
    "sampler": sampler,
    "posterior": posterior,
    "training-step": training_step,
    "long-step": long_step,
    "hooks": hooks,
    "probes": all_probes,
    "sweep": sweep,
    "app": click_to_bars,
    "engines": sweep_engines,
}


def run_group(name: str, quick: bool = False) -> list[Measurement]:
    """Measure one group; `quick` repeats less often and leaves out the slow sizes."""
    group = GROUPS[check_option("group", name, GROUPS)]
    return group(quick)
