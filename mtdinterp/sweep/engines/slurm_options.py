"""The options of Slurm jobs, given as NAME=VALUE: checked, and translated for submitit.

Most options are sbatch's own, and Slurm checks their values when jobs are submitted. Checked here
is what submitit would misunderstand, or what belongs to the sweep.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtdinterp.sweep.engines.base import EngineError

CLUSTERS = ("slurm", "local")
"""Where jobs run: the real Slurm, or processes on this machine, to try things out."""
MINUTES = 12 * 60
"""The default time limit."""
TOO_SHORT = 10
"""submitit takes a signal in the last ten minutes of a job for its timeout, so a job of at most ten
minutes always counts as timed out, even when it is preempted in its first minute."""
MOST_TIMEOUTS = 1000
"""How often submitit puts a job back into the queue. Every time, the cell has made progress."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
WRONG_VALUE = re.compile(r"[\x00-\x1f\x7f]")
LISTS = ("setup", "teardown", "srun_args")
"""Options that may be given several times."""
MANAGED = {
    "array": "--max-concurrent",
    "array_parallelism": "--max-concurrent",
    "cpus_per_task": "--cpus-per-cell",
    "ntasks": "--max-concurrent",
    "ntasks_per_node": "--max-concurrent",
    "tasks_per_node": "--max-concurrent",
    "nodes": "--max-concurrent",
    "output": "--out",
    "error": "--out",
    "chdir": "--out",
}
"""Options that the sweep sets itself, and the flags that they follow from."""
UNUSABLE = ("signal", "open_mode", "use_srun", "stderr_to_stdout", "wrap", "parsable", "test_only")
"""Options that would hide from the sweep what its jobs do."""
ALIASES = {"timeout_min": "time", "job_name": "name"}


@dataclass(frozen=True)
class SlurmOptions:
    """The options of all jobs of a sweep."""

    cluster: str
    """One of `CLUSTERS`."""
    parameters: Mapping[str, Any]
    """The named arguments of submitit's `update_parameters`, without those of the sweep."""
    srun_args: Sequence[str]


def read_options(texts: Sequence[str]) -> SlurmOptions:
    """Check options and translate them.

    Args:
        texts: options as NAME=VALUE. Underscores and hyphens in names are the same.

    Returns:
        The options.

    Raises:
        EngineError: with one sentence that names the option.
    """
    given: dict[str, str] = {}
    lists: dict[str, list[str]] = {name: [] for name in LISTS}
    for text in texts:
        name, value = _parts(text)
        if name in lists:
            lists[name].append(value)
        elif name in given:
            raise EngineError(f"--slurm {name}: expected one value, but it is given twice")
        else:
            given[name] = value
    cluster = given.pop("cluster", CLUSTERS[0])
    if cluster not in CLUSTERS:
        raise EngineError(f"--slurm cluster={cluster}: expected slurm or local")
    parameters: dict[str, Any] = {"name": "mtdinterp", "timeout_min": MINUTES}
    others: dict[str, Any] = {}
    for name, value in given.items():
        if name in CONVERTED:
            target, convert = CONVERTED[name]
            parameters[target] = convert(name, value)
        else:
            others[name] = True if value == "true" else value
    if "no_requeue" not in others:
        # Where jobs are not requeued by default, Slurm would refuse to requeue preempted ones.
        others["requeue"] = True
    parameters["slurm_additional_parameters"] = others
    for name in ("setup", "teardown"):
        if lists[name]:
            parameters[f"slurm_{name}"] = lists[name]
    return SlurmOptions(cluster, parameters, tuple(lists["srun_args"]))


def _parts(text: str) -> tuple[str, str]:
    """The name and the value of an option."""
    name, equals, value = text.partition("=")
    if not equals or not NAME.fullmatch(name) or not value:
        raise EngineError(f"--slurm {text!r:.80}: expected NAME=VALUE, such as partition=long")
    name = name.replace("-", "_")
    name = ALIASES.get(name, name)
    if WRONG_VALUE.search(value):
        raise EngineError(f"--slurm {name}={value!r:.80}: expected a value of one line")
    if name in MANAGED:
        raise EngineError(f"--slurm {name}: the sweep sets it itself; use {MANAGED[name]} instead")
    if name in UNUSABLE:
        raise EngineError(f"--slurm {name}: leave it out; the sweep needs its own value")
    return name, value


def _minutes(name: str, value: str) -> int:
    minutes = _whole(name, value)
    if minutes <= TOO_SHORT:
        raise EngineError(
            f"--slurm {name}={value}: expected more than {TOO_SHORT} minutes, because submitit "
            "takes shorter jobs for timed out at once"
        )
    return minutes


def _whole(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,8}", value):
        example = "minutes, such as time=120" if name == "time" else "a whole number"
        raise EngineError(f"--slurm {name}={value}: expected {example}")
    return int(value)


def _gigabytes(name: str, value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", value) or float(value) == 0:
        raise EngineError(f"--slurm {name}={value}: expected gigabytes, such as mem_gb=4")
    return float(value)


def _text(name: str, value: str) -> str:
    return value


CONVERTED: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "time": ("timeout_min", _minutes),
    "name": ("name", _text),
    "mem_gb": ("mem_gb", _gigabytes),
    "gpus_per_node": ("gpus_per_node", _whole),
    "signal_delay_s": ("slurm_signal_delay_s", _whole),
}
"""Options that submitit knows under another name, or wants as numbers."""
