"""`mtdinterp construct`: an exact construction as a checkpoint, next to the estimators it should
match."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mtdinterp.commands.flags import (
    add_json_flag,
    add_model_flags,
    add_task_flags,
    at_least,
    check_order_below_length,
    checkpoint_directory,
    number,
)
from mtdinterp.commands.progress import stages

if TYPE_CHECKING:
    from torch import Tensor

    from mtdinterp.estimators import TunedRate
    from mtdinterp.metrics import Score
    from mtdinterp.task import MTDTask, Sample

BUILDABLE = {("disentangled", 3), ("disentangled", 5), ("standard", 3)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n  mtdinterp construct --order 4 --length 64 --out out/one-step\n"
        "  mtdinterp construct --layers 5 --target two_step --json\n"
        "  mtdinterp construct --architecture standard --beta 16"
    )
    add_task_flags(parser)
    add_model_flags(parser, layers="3, or 5 for two steps in the disentangled one (3)")
    parser.add_argument(
        "--beta", type=number(minimum=0), help="β of the 3-layer constructions (default: tuned)"
    )
    parser.add_argument(
        "--constants",
        type=number(),
        nargs=4,
        metavar=("B1", "A", "C1", "C2"),
        help="β₁ a c₁ c₂ of the two-step construction (default: tuned)",
    )
    parser.add_argument(
        "--target",
        choices=("truth", "two_step"),
        help="what those constants are tuned to (default: truth)",
    )
    parser.add_argument(
        "--delta",
        type=number(minimum=0, exclusive=True),
        default=100.0,
        help="the mask's large constant (100)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="of the weights (float32)",
    )
    parser.add_argument(
        "--sequences",
        type=at_least(2),
        default=2000,
        metavar="N",
        help="sequences to compare on (2000)",
    )
    parser.add_argument(
        "--out",
        type=checkpoint_directory,
        metavar="DIR",
        help="write a checkpoint there (default: none)",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check(options)
    with stages(4 if options.out else 3) as stage:
        stage("importing")
        from mtdinterp import MTDTask, save_checkpoint

        task = MTDTask.random(options.vocab_size, options.order, seed=options.task_seed)
        stage("tuning")
        rates = _tuned_rates(task, options)
        model, formula, constants = _build(task, options, rates[1].beta)
        if options.out:
            stage("saving")
            given = {"delta": options.delta, "target": options.target, "tuned": _is_tuned(options)}
            save_checkpoint(
                options.out,
                model,
                task,
                recipe={"construction": {**constants, **given}},
                seeds={"task": options.task_seed, "tuning": options.seed},
            )
        stage("comparing")
        data = task.sample(options.sequences, options.length, seed=[options.seed, 3])
        rows, error = _compare(task, data, model, formula, rates)
    result = {
        "construction": {
            "architecture": options.architecture,
            "layers": options.layers,
            "constants": constants,
            "tuned": _is_tuned(options),
            "delta": options.delta,
            "dtype": options.dtype,
        },
        "task": {
            "vocab_size": options.vocab_size,
            "order": options.order,
            "length": options.length,
            "seed": options.task_seed,
        },
        "sequences": options.sequences,
        "seed": options.seed,
        "max_error_to_formula": error,
        "kl_to_truth": rows,
        "checkpoint": str(options.out) if options.out else None,
    }
    print(json.dumps(result, indent=1) if options.json else _table(result))
    return 0


def _check(options: argparse.Namespace) -> None:
    """What can be refused before anything heavy is imported."""
    check_order_below_length(options)
    kind = (options.architecture, options.layers)
    if kind not in BUILDABLE:
        known = ", ".join(f"{name} with {layers} layers" for name, layers in sorted(BUILDABLE))
        raise ValueError(f"there are constructions for {known}; got {kind[0]} with {kind[1]}")
    if options.layers == 5 and options.beta is not None:
        raise ValueError(
            "--beta is for 3 layers; the two-step construction takes --constants B1 A C1 C2"
        )
    if options.layers == 3 and options.constants is not None:
        raise ValueError("--constants is for 5 layers; the 3-layer constructions take --beta")
    if options.target and (options.layers == 3 or options.constants is not None):
        raise ValueError(
            "--target is for tuning the two-step construction; there is nothing to tune here"
        )


def _is_tuned(options: argparse.Namespace) -> bool:
    return options.beta is None and options.constants is None


def _tuned_rates(task: "MTDTask", options: argparse.Namespace) -> dict[int, "TunedRate"]:
    from mtdinterp.estimators import tune_learning_rate

    return {
        steps: tune_learning_rate(task, options.length, steps=steps, seed=options.seed)
        for steps in (1, 2)
    }


def _build(
    task: "MTDTask", options: argparse.Namespace, tuned_beta: float
) -> tuple[Any, Any, dict[str, float]]:
    """The model, the estimator it implements (tokens to weights), and the constants of both."""
    import torch

    from mtdinterp.construction import one_step, one_step_standard, tune_two_step, two_step
    from mtdinterp.estimators import (
        TwoStepConstants,
        learning_rate_from_beta,
        mirror_descent,
        reweighted_two_step,
    )

    dtype = getattr(torch, options.dtype)
    length = options.length
    if options.layers == 5:
        given = options.constants
        constants = (
            TwoStepConstants(*given)
            if given
            else tune_two_step(task, length, target=options.target or "truth", seed=options.seed)
        )
        model = two_step(
            task.transition, task.order, length, *constants, delta=options.delta, dtype=dtype
        )
        return (
            model,
            lambda tokens: reweighted_two_step(task.transition, tokens, task.order, constants),
            constants._asdict(),
        )
    beta = options.beta if options.beta is not None else tuned_beta
    build = one_step_standard if options.architecture == "standard" else one_step
    model = build(task.transition, task.order, length, beta, delta=options.delta, dtype=dtype)
    rate = learning_rate_from_beta(beta, task.order, length)
    return (
        model,
        lambda tokens: mirror_descent(task.transition, tokens, task.order, rate),
        {"beta": beta},
    )


def _compare(
    task: "MTDTask", data: "Sample", model: Any, formula: Any, rates: dict[int, "TunedRate"]
) -> tuple[list[dict[str, Any]], float]:
    """KL to the truth of the construction and of the estimators, and its largest deviation from its
    formula."""
    from mtdinterp.estimators import (
        exact_posterior_mean,
        expectation_maximization,
        mirror_descent,
        predict_next,
        uniform_weights,
    )
    from mtdinterp.metrics import score
    from mtdinterp.readout import predictions

    problem = (task.transition, data.tokens, task.order)

    def predicted(weights: "Tensor") -> "Tensor":
        return predict_next(task.transition, data.tokens, weights)

    output = predictions(model, data.tokens)
    error = (output - predicted(formula(data.tokens))).abs().max().item()
    estimates: dict[str, Callable[[], Tensor]] = {
        "uniform weights": lambda: uniform_weights(*problem),
        f"one-step MD (tuned, β = {rates[1].beta:.4g})": lambda: mirror_descent(
            *problem, rates[1].learning_rate
        ),
        f"two-step MD (tuned, β = {rates[2].beta:.4g})": lambda: mirror_descent(
            *problem, rates[2].learning_rate, steps=2
        ),
        "maximum likelihood": lambda: expectation_maximization(*problem),
        # To a tolerance that six digits of KL can show.
        "exact posterior mean": lambda: exact_posterior_mean(
            *problem, tolerance=1e-6, max_nodes=200_000
        ),
    }
    rows = [_row("construction", score(data.next_probs, output))]
    for name, estimate in estimates.items():
        try:
            rows.append(_row(name, score(data.next_probs, predicted(estimate()))))
        except (
            ValueError
        ) as error_text:  # many lags on a long sequence: too large a rule for a table
            rows.append({"name": name, "kl": None, "stderr": None, "why": str(error_text)})
    return rows, error


def _row(name: str, result: "Score") -> dict[str, Any]:
    return {"name": name, "kl": result.kl, "stderr": result.stderr}


def _table(result: dict[str, Any]) -> str:
    made, task = result["construction"], result["task"]
    constants = ", ".join(f"{name} = {value:.4g}" for name, value in made["constants"].items())
    lines = [
        f"{made['layers']}-layer {made['architecture']} construction: "
        f"{constants}{' (tuned)' if made['tuned'] else ''}",
        f"task: {task['vocab_size']} tokens, order {task['order']}, length {task['length']}, "
        f"task seed {task['seed']}; {result['sequences']} sequences",
        f"largest deviation from its formula: {result['max_error_to_formula']:.1e}",
    ]
    if result["max_error_to_formula"] > {"float32": 5e-5, "float64": 1e-10}[made["dtype"]]:
        lines.append("  that is too much: the mask is too weak for these constants; raise --delta")
    lines += ["", f"{'KL to the true next-token distribution':<40} mean      stderr"]
    for row in result["kl_to_truth"]:
        numbers = "not computed" if row["kl"] is None else f"{row['kl']:.6f}  {row['stderr']:.6f}"
        lines.append(f"  {row['name']:<38} {numbers}")
    saved = result["checkpoint"]
    lines += [
        "",
        f"checkpoint: {saved}" if saved else "not saved; add --out DIR to write a checkpoint",
    ]
    return "\n".join(lines)
