"""`mtdinterp construct`: an exact construction as a checkpoint, next to the estimators it should match."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from mtdinterp.commands.flags import add_json_flag, add_model_flags, add_task_flags, check_order_below_length

if TYPE_CHECKING:
    from torch import Tensor

    from mtdinterp.task import MTDTask, Sample

BUILDABLE = {("disentangled", 3), ("disentangled", 5), ("standard", 3)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = ("examples:\n  mtdinterp construct --order 4 --length 64 --out out/one-step\n"
                     "  mtdinterp construct --layers 5 --target two_step --json\n"
                     "  mtdinterp construct --architecture standard --beta 16")
    add_task_flags(parser)
    add_model_flags(parser)
    parser.add_argument("--beta", type=float, help="β of the 3-layer constructions (tuned for the task)")
    parser.add_argument("--constants", type=float, nargs=4, metavar=("B1", "A", "C1", "C2"),
                        help="β₁ a c₁ c₂ of the 5-layer construction (tuned for the task)")
    parser.add_argument("--target", choices=("truth", "two_step"), default="truth",
                        help="what the 5-layer constants are tuned to (truth)")
    parser.add_argument("--delta", type=float, default=100.0, help="the mask's large constant (100)")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--sequences", type=int, default=2000, metavar="N", help="sequences to compare on (2000)")
    parser.add_argument("--out", metavar="DIR", help="write a checkpoint there")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    check_order_below_length(options)
    kind = (options.architecture, options.layers)
    if kind not in BUILDABLE:
        known = ", ".join(f"{name} with {layers} layers" for name, layers in sorted(BUILDABLE))
        raise ValueError(f"there are constructions for {known}; got {kind[0]} with {kind[1]}")
    if options.layers == 5 and options.beta is not None:
        raise ValueError("--beta is for 3 layers; the 5-layer construction takes --constants B1 A C1 C2")
    if options.layers == 3 and options.constants is not None:
        raise ValueError("--constants is for 5 layers; the 3-layer constructions take --beta")
    if options.sequences < 2:
        raise ValueError(f"--sequences must be at least 2, got {options.sequences}")

    from mtdinterp.commands.progress import stages

    with stages(4 if options.out else 3, quiet=options.json) as stage:
        stage("importing")
        from mtdinterp import MTDTask, save_checkpoint

        task = MTDTask.random(options.vocab_size, options.order, seed=options.task_seed)
        stage("tuning")
        model, formula, constants = _build(task, options)
        stage("comparing")
        data = task.sample(options.sequences, options.length, seed=[options.seed, 1])
        rows, error = _compare(task, data, model, formula, options)
        if options.out:
            stage("saving")
            save_checkpoint(options.out, model, task, recipe={"construction": constants},
                            seeds={"task": options.task_seed, "tuning": options.seed})
    result = {
        "construction": {"architecture": options.architecture, "layers": options.layers, **constants},
        "task": {"vocab_size": options.vocab_size, "order": options.order, "length": options.length,
                 "seed": options.task_seed},
        "max_error_to_formula": error,
        "kl_to_truth": rows,
        "checkpoint": options.out,
    }
    print(json.dumps(result, indent=1) if options.json else _table(result))
    return 0


def _build(task: "MTDTask", options: argparse.Namespace) -> tuple[Any, Any, dict[str, float]]:
    """The model, the estimator it implements (tokens to weights), and the constants of both."""
    import torch

    from mtdinterp.construction import one_step, one_step_standard, tune_two_step, two_step
    from mtdinterp.estimators import (
        TwoStepConstants,
        learning_rate_from_beta,
        mirror_descent,
        reweighted_two_step,
        tune_learning_rate,
    )

    dtype = getattr(torch, options.dtype)
    length = options.length
    if options.layers == 5:
        given = options.constants
        constants = (TwoStepConstants(*given) if given
                     else tune_two_step(task, length, target=options.target, seed=options.seed))
        model = two_step(task.transition, task.order, length, *constants, delta=options.delta, dtype=dtype)
        return model, lambda tokens: reweighted_two_step(
            task.transition, tokens, task.order, constants), constants._asdict()
    beta = options.beta if options.beta is not None else tune_learning_rate(task, length, seed=options.seed).beta
    build = one_step_standard if options.architecture == "standard" else one_step
    model = build(task.transition, task.order, length, beta, delta=options.delta, dtype=dtype)
    rate = learning_rate_from_beta(beta, task.order, length)
    return model, lambda tokens: mirror_descent(task.transition, tokens, task.order, rate), {"beta": beta}


def _compare(
    task: "MTDTask", data: "Sample", model: Any, formula: Any, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], float]:
    """KL to the truth of the construction and of the estimators, and its largest deviation from its formula."""
    import torch

    from mtdinterp.estimators import (
        exact_posterior_mean,
        expectation_maximization,
        mirror_descent,
        predict_next,
        tune_learning_rate,
        uniform_weights,
    )
    from mtdinterp.metrics import score

    problem = (task.transition, data.tokens, task.order)

    def predicted(weights: "Tensor") -> "Tensor":
        return predict_next(task.transition, data.tokens, weights)

    with torch.no_grad():
        output = torch.cat([model(part, last_only=True) for part in data.tokens.split(256)]).double()
    error = (output - predicted(formula(data.tokens))).abs().max().item()
    rates = {k: tune_learning_rate(task, options.length, steps=k, seed=options.seed) for k in (1, 2)}
    predictions = {
        "construction": output,
        "uniform weights": predicted(uniform_weights(*problem)),
        "one-step MD (tuned)": predicted(mirror_descent(*problem, rates[1].learning_rate)),
        "two-step MD (tuned)": predicted(mirror_descent(*problem, rates[2].learning_rate, steps=2)),
        "maximum likelihood": predicted(expectation_maximization(*problem)),
        "exact posterior mean": predicted(exact_posterior_mean(*problem)),
    }
    scores = {name: score(data.next_probs, output) for name, output in predictions.items()}
    return [{"name": name, "kl": s.kl, "stderr": s.stderr} for name, s in scores.items()], error


def _table(result: dict[str, Any]) -> str:
    made, task = result["construction"], result["task"]
    constants = ", ".join(f"{name} = {value:.4g}" for name, value in made.items()
                          if name not in ("architecture", "layers"))
    lines = [
        f"{made['layers']}-layer {made['architecture']} construction: {constants}",
        f"task: {task['vocab_size']} tokens, order {task['order']}, length {task['length']}, "
        f"task seed {task['seed']}",
        f"largest deviation from its formula: {result['max_error_to_formula']:.1e}",
        "",
        "KL to the true next-token distribution   mean      stderr",
    ]
    lines += [f"  {row['name']:<38} {row['kl']:.6f}  {row['stderr']:.6f}" for row in result["kl_to_truth"]]
    if result["checkpoint"]:
        lines += ["", f"checkpoint: {result['checkpoint']}"]
    return "\n".join(lines)
