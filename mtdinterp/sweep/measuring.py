"""The numbers of a cell: how well its model predicts, and every scalar that the probes found."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mtdinterp.checkpoints import Checkpoint
from mtdinterp.estimators.mirror_descent import TunedRate
from mtdinterp.report import collect, judge, write_report
from mtdinterp.report.collect import QUICK_SEQUENCES, collect_probes
from mtdinterp.report.findings import Findings
from mtdinterp.results import to_plain
from mtdinterp.sweep.cells import REPORT, Cell
from mtdinterp.training import HeldOut, Recipe
from mtdinterp.training.shortfall import shortfall

READINGS = ("kl", "kl_stderr", "ratio", "beta", "beta_r2", "gain", "gain_r2", "branch", "clipped")
"""What the last evaluation says, under its own name."""

Scalar = float | int | bool | str | None


def measured(
    checkpoint: Checkpoint,
    cell: Cell,
    held_out: HeldOut,
    directory: Path,
    stage: Callable[[str], None],
) -> dict[str, dict[str, Scalar]]:
    """Everything that is measured of a trained model.

    Args:
        checkpoint: the model.
        cell: what to measure.
        held_out: the sequences that the model was evaluated on, with the estimators' scores.
        directory: the cell's directory, where the report goes.
        stage: called with the name of each stage before it starts.

    Returns:
        "metrics" from the last evaluation, and "probes": every scalar of every probe, named
        after the probe and the field, such as `recover_beta.weights`.
    """
    measure = cell.measure
    if measure.report == "none":
        sequences = measure.sequences or QUICK_SEQUENCES
        findings = collect_probes(checkpoint, measure.probes, n_sequences=sequences, stage=stage)
    else:
        quick = measure.report == "quick"
        findings = collect(checkpoint, n_sequences=measure.sequences, quick=quick, stage=stage)
        stage("report")
        write_report([findings], directory / REPORT, f"mtdinterp sweep cell {cell.name}")
    return {
        "metrics": metrics_of(checkpoint, held_out),
        "probes": scalars_of(findings),
    }


def metrics_of(checkpoint: Checkpoint, held_out: HeldOut) -> dict[str, Scalar]:
    """The model's last evaluation, next to the scores of the estimators."""
    last = checkpoint.history[-1]
    values: dict[str, Scalar] = {"step": last["step"]}
    for name in READINGS:
        values[name] = last[name]
    for name, kl in held_out.kl.items():
        values[f"kl_of_{name}"] = kl
    values |= optimum_of(held_out.tuned)
    values["warning"] = shortfall(last, Recipe.from_dict(checkpoint.config["recipe"]))
    return values


def optimum_of(tuned: TunedRate | None) -> dict[str, Scalar]:
    """The tuned β, the ends of its interval (None if open), and whether it is flat."""
    if tuned is None:
        return dict.fromkeys(("optimal_beta", "optimal_low", "optimal_high", "optimal_flat"))
    return {
        "optimal_beta": tuned.beta,
        "optimal_low": tuned.interval.low,
        "optimal_high": tuned.interval.high,
        "optimal_flat": tuned.flat,
    }


def scalars_of(findings: Findings) -> dict[str, Scalar]:
    """Every number, truth value and short text that the probes found, by probe and field."""
    found: dict[str, Scalar] = {}
    for name, result in findings.probes.items():
        flatten(to_plain(result), name, found)
    for name, reason in findings.not_computed.items():
        found[f"{name}.not_computed"] = reason
    if "identify_algorithm" in findings.probes:
        verdict = judge(findings)
        found["verdict.algorithm"] = verdict.algorithm
        found["verdict.branch"] = verdict.branch
    return found


def flatten(value: Any, name: str, into: dict[str, Scalar]) -> None:
    """Add the scalars of nested plain values under dotted names; lists are left out, but for pairs.

    Args:
        value: plain values as `to_plain` makes them.
        name: the name of the value.
        into: where to add them.
    """
    if isinstance(value, Mapping):
        for key, entry in value.items():
            flatten(entry, f"{name}.{key}", into)
    elif isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)):
        into[f"{name}.low"], into[f"{name}.high"] = value
    elif value is None or isinstance(value, bool | int | str):
        into[name] = value
    elif isinstance(value, float):
        into[name] = value if math.isfinite(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
