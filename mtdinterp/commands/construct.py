"""`mtdinterp construct`: an exact construction as a checkpoint, compared with the estimators."""

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from mtdinterp.commands.flags import (
    add_json_flag,
    add_model_flags,
    at_least,
    checkpoint_directory,
    number,
)
from mtdinterp.commands.progress import stages
from mtdinterp.commands.task_flags import (
    add_task_flags,
    describe_source,
    make_task,
    settle_task_flags,
    task_seeds,
)
from mtdinterp.formatting import counted, fixed

if TYPE_CHECKING:
    from mtdinterp.algorithms.base import Algorithm
    from mtdinterp.construction import Implementation
    from mtdinterp.estimators import Constants, Estimator
    from mtdinterp.estimators.fitting import Fit
    from mtdinterp.evidence import Evidence
    from mtdinterp.metrics import Score
    from mtdinterp.models import LensTransformer
    from mtdinterp.tasks import Sample, Task

COMPARED_SEQUENCES = 1000
"""Sequences on which the other estimators of the table are tuned."""
ROUNDING = {"float32": 5e-5, "float64": 1e-10}
"""The largest deviation from the formula that rounding explains."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    parser.epilog = (
        "examples:\n  mtdinterp construct --order 4 --length 64 --out out/one-step\n"
        "  mtdinterp construct --layers 5 --target two_step --json\n"
        "  mtdinterp construct --architecture standard --beta 16\n"
        "  mtdinterp construct --transition pi.csv --normalise --order 2 --length 48"
    )
    add_task_flags(parser)
    add_model_flags(parser, layers="3, or 5 for the two-step construction (default: 3)")
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="the algorithm to construct, if several have a construction of this depth",
    )
    constants = parser.add_mutually_exclusive_group()
    constants.add_argument(
        "--beta", type=number(minimum=0), help="β of the one-step constructions (default: tuned)"
    )
    constants.add_argument(
        "--constants",
        type=number(),
        nargs="+",
        metavar="X",
        help="values for all constants of the algorithm, in order, such as β₁ a c₁ c₂ for the "
        "two-step construction (default: tuned)",
    )
    parser.add_argument(
        "--target",
        choices=("truth", "two_step"),
        help="what to tune the constants of the two-step construction to: the true distribution or "
        "two-step mirror descent (default: truth)",
    )
    parser.add_argument(
        "--delta",
        type=number(minimum=0, exclusive=True),
        default=100.0,
        help="magnitude of the attention scores that mask positions (default: 100)",
    )
    parser.add_argument(
        "--dtype",
        choices=tuple(ROUNDING),
        default="float32",
        help="data type of the weights (default: float32)",
    )
    parser.add_argument(
        "--sequences",
        type=at_least(2),
        default=2000,
        metavar="N",
        help="number of sequences for the comparison (default: 2000)",
    )
    parser.add_argument(
        "--out",
        type=checkpoint_directory,
        metavar="DIR",
        help="save a checkpoint in this directory (default: do not save)",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Construct a model, save it if asked to, and print the comparison; returns the exit code."""
    settle_task_flags(options)
    with stages(4 if options.out else 3) as stage:
        stage("importing")
        import torch

        from mtdinterp.registry import ALGORITHMS

        task = make_task(options)
        implementation = _implementation(options, task)
        algorithm = ALGORITHMS[implementation.algorithm]
        _check_constants(options, algorithm)
        stage("tuning")
        fit = _given(options, algorithm) or _tuned(options, algorithm, task)
        constants = fit.constants
        dtype = getattr(torch, options.dtype)
        model = implementation.construct(task, options.length, constants, options.delta, dtype)
        if options.out:
            stage("saving")
            _save(options, model, task, constants)
        stage("comparing")
        data = task.sample(options.sequences, options.length, seed=[options.seed, 3])
        evidence = task.evidence(data.tokens)
        output = _predictions(model, data)
        formula = algorithm.predict(evidence, **constants)
        result = _result(options, task, fit)
        result["max_error_to_formula"] = (output - formula).abs().max().item()
        result["kl_to_truth"] = [
            _row("construction", None, _score(data, output)),
            *_estimator_rows(options, task, data, evidence),
        ]
        result["checkpoint"] = str(options.out) if options.out else None
    described = ", ".join(fit.constant_text(constant) for constant in algorithm.constants)
    if _is_tuned(options) and not fit.intervals:
        described += " (tuned together, so without intervals)"
    print(json.dumps(result, indent=1) if options.json else _table(result, described))
    return 0


def _implementation(options: argparse.Namespace, task: "Task") -> "Implementation":
    """The construction for the chosen architecture and depth.

    Raises:
        NotApplicable: if there is none, or none for this kind of task.
    """
    from mtdinterp.errors import NotApplicable
    from mtdinterp.registry import IMPLEMENTATIONS

    known = []
    for implementation in IMPLEMENTATIONS.values():
        chosen = options.algorithm in (None, implementation.algorithm)
        depth = (implementation.architecture, implementation.n_layers)
        if chosen and depth == (options.architecture, options.layers):
            implementation.check_task(task)
            return implementation
        known.append((implementation.algorithm, *depth))
    listed = ", ".join(
        f"{algorithm} ({name}, {layers} layers)" for algorithm, name, layers in sorted(known)
    )
    wanted = f"{options.architecture} with {options.layers} layers"
    if options.algorithm is not None:
        wanted = f"{options.algorithm} in {wanted}"
    raise NotApplicable(f"no construction is known for {wanted}; there are {listed}")


def _check_constants(options: argparse.Namespace, algorithm: "Algorithm") -> None:
    """Refuse flags that do not fit the constants of the algorithm."""
    from mtdinterp.algorithms.two_step import TwoStep

    names = [constant.name for constant in algorithm.constants]
    symbols = " ".join(constant.symbol for constant in algorithm.constants)
    if options.beta is not None and names != ["beta"]:
        raise ValueError(f"--beta: {algorithm.label} takes --constants {symbols} instead")
    if options.constants is not None and len(options.constants) != len(names):
        raise ValueError(
            f"--constants: expected {len(names)} for {algorithm.label} ({symbols}), got "
            f"{len(options.constants)}"
        )
    if options.target and not (isinstance(algorithm, TwoStep) and options.constants is None):
        raise ValueError(
            "--target applies only when the two-step construction is tuned; leave it out"
        )


def _given(options: argparse.Namespace, algorithm: "Algorithm") -> "Fit | None":
    """The constants on the command line; None if they are to be tuned."""
    from mtdinterp.estimators.fitting import Fit

    if options.beta is not None:
        return Fit({"beta": options.beta}, math.nan)
    if options.constants is None:
        return None
    names = [constant.name for constant in algorithm.constants]
    return Fit(dict(zip(names, options.constants, strict=True)), math.nan)


def _tuned(options: argparse.Namespace, algorithm: "Algorithm", task: "Task") -> "Fit":
    """The constants that predict best.

    Raises:
        CannotCompute: if there is nothing to tune, or the best value is a bound of the range.
    """
    from mtdinterp.errors import NothingToTune

    try:
        return _best(options, algorithm, task)
    except NothingToTune as error:
        names = [constant.name for constant in algorithm.constants]
        flag = "--beta" if names == ["beta"] else "--constants"
        raise NothingToTune(
            f"{error}; use another task, such as another --transition, or give {flag}"
        ) from error


def _best(options: argparse.Namespace, algorithm: "Algorithm", task: "Task") -> "Fit":
    from mtdinterp.algorithms.two_step import TwoStep, tune_two_step
    from mtdinterp.errors import OptimumAtEdge
    from mtdinterp.estimators.fitting import Fit

    if isinstance(algorithm, TwoStep):
        # The only algorithm with a choice of targets.
        target = options.target or "truth"
        constants = tune_two_step(task, options.length, target, options.seed)
        return Fit(constants._asdict(), math.nan)
    fit = algorithm.tune(task, options.length, seed=options.seed)
    if fit.at_bound:
        raise OptimumAtEdge(
            f"the best {fit.at_bound[0]} lies at the edge of the search range; give it with "
            "--constants"
        )
    return fit


def _is_tuned(options: argparse.Namespace) -> bool:
    return options.beta is None and options.constants is None


def _save(
    options: argparse.Namespace, model: "LensTransformer", task: "Task", constants: "Constants"
) -> None:
    from mtdinterp import save_checkpoint

    settings = {"delta": options.delta, "target": options.target, "tuned": _is_tuned(options)}
    save_checkpoint(
        options.out,
        model,
        task,
        recipe={"construction": {**constants, **settings}},
        seeds={**task_seeds(options), "tuning": options.seed},
    )


def _predictions(model: "LensTransformer", data: "Sample") -> Any:
    from mtdinterp.readings import predictions_of

    return predictions_of(model, data.tokens)


def _score(data: "Sample", predictions: Any) -> "Score":
    from mtdinterp.metrics import score

    return score(data.next_probs, predictions)


def _estimator_rows(
    options: argparse.Namespace, task: "Task", data: "Sample", evidence: "Evidence"
) -> list[dict[str, Any]]:
    """One row per registered estimator, with its constants tuned on other sequences."""
    from mtdinterp.errors import CannotCompute
    from mtdinterp.estimators.base import accuracy_notes
    from mtdinterp.registry import ESTIMATORS

    rows = []
    for name, estimator in ESTIMATORS.items():
        try:
            fit = _compared(options, estimator, task, evidence)
            predictions = estimator.predict(evidence, **fit.constants)
        except CannotCompute as error:
            missing = {"kl": None, "stderr": None, "why": str(error)}
            rows.append({"name": estimator.label, "estimator": name, **missing})
            continue
        label = estimator.label + _describe(estimator, evidence, fit)
        note = {"note": accuracy_notes([name], evidence).get(name)}
        rows.append(_row(label, name, _score(data, predictions)) | _as_json(fit) | note)
    return rows


def _compared(
    options: argparse.Namespace, estimator: "Estimator", task: "Task", evidence: "Evidence"
) -> "Fit":
    """An estimator's tuned constants."""
    from mtdinterp.estimators.fitting import Fit

    if not estimator.constants_for(evidence):
        return Fit({}, math.nan)
    return estimator.tune(task, options.length, seed=options.seed, n_sequences=COMPARED_SEQUENCES)


def _describe(estimator: "Estimator", evidence: "Evidence", fit: "Fit") -> str:
    """A single tuned constant with its interval; several would not fit in the table."""
    if len(fit.constants) != 1:
        return " (tuned)" if fit.constants else ""
    return f", {fit.constant_text(estimator.constants_for(evidence)[0])}"


def _as_json(fit: "Fit") -> dict[str, Any]:
    """The constants, those intervals that are known (an open end is null), and the flat ones."""
    return {
        "constants": fit.constants,
        "intervals": {name: list(interval) for name, interval in fit.intervals.items()},
        "flat": list(fit.flat),
    }


def _row(label: str, estimator: str | None, result: "Score") -> dict[str, Any]:
    return {"name": label, "estimator": estimator, "kl": result.kl, "stderr": result.stderr}


def _result(options: argparse.Namespace, task: "Task", fit: "Fit") -> dict[str, Any]:
    """The construction's settings and the task that it is compared on."""
    return {
        "construction": {
            "architecture": options.architecture,
            "layers": options.layers,
            **_as_json(fit),
            "tuned": _is_tuned(options),
            "delta": options.delta,
            "dtype": options.dtype,
        },
        "task": {
            "kind": options.task,
            "vocab_size": task.vocab_size,
            "order": task.n_components,
            "length": options.length,
            "concentration": task.concentration,
            "seed": options.task_seed,
            "source": describe_source(options),
            "prior": task.prior,
        },
        "sequences": options.sequences,
        "seed": options.seed,
    }


def _table(result: dict[str, Any], constants: str) -> str:
    made = result["construction"]
    task = result["task"]
    error = result["max_error_to_formula"]
    tuned = "tuned " if made["tuned"] else ""
    lines = [
        f"{made['layers']}-layer {made['architecture']} construction: {tuned}{constants}",
        f"task: {task['vocab_size']} tokens, order {task['order']}, length {task['length']}, "
        f"{task['source']}; prior {task['prior']}; {counted(result['sequences'], 'sequence')}",
        f"largest deviation from its formula: {error:.1e}",
    ]
    if error > ROUNDING[made["dtype"]]:
        lines.append("  too large: the mask is too weak for these constants; raise --delta")
    rows = result["kl_to_truth"]
    title = "KL to the true next-token distribution"
    width = max(len(title), *(len(row["name"]) for row in rows)) + 2
    lines += ["", f"{title:<{width}} mean      stderr"]
    for row in rows:
        if row["kl"] is None:
            numbers = f"not computed: {row['why']}"
        else:
            numbers = f"{fixed(row['kl'], 6)}  {fixed(row['stderr'], 6)}"
            if row.get("note"):
                numbers += f"  ({row['note']})"
        name = "  " + row["name"]
        lines.append(f"{name:<{width}} {numbers}")
    saved = result["checkpoint"]
    lines += [
        "",
        f"checkpoint: {saved}" if saved else "not saved; add --out DIR to write a checkpoint",
    ]
    return "\n".join(lines)
