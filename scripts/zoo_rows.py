"""One row per model of the zoo, for each table of docs/results that `measure_zoo` writes."""

import math
from functools import cache
from statistics import median

from mtdinterp import explain, load_checkpoint
from mtdinterp.algorithms.base import Variable
from mtdinterp.checkpoint_files import ZOO, read_config
from mtdinterp.checkpoints import Checkpoint
from mtdinterp.criteria import OUTPUT_FLOOR
from mtdinterp.decompile import decompile
from mtdinterp.interventions import interchange
from mtdinterp.metrics import kl_divergence, mean_stderr, to_distribution
from mtdinterp.readings import predictions_of
from mtdinterp.registry import ALGORITHMS, ESTIMATORS
from mtdinterp.training import HeldOut
from mtdinterp.training.zoo import zoo_task
from probes import identify_algorithm, recover_beta, recover_transition, trace_development
from probes.recover_transition import TransitionRecovery

Row = tuple[str, ...]
READINGS = {
    "attention_softmax": "paper's probe",
    "attention": "gauge fixed",
    "output": "output",
    "output_circuit": "OV circuit",
    "behaviour": "behaviour",
}
"""Readings of π, with the headings of their columns."""
LAST_EVALUATIONS = 10
"""How many evaluations the median at the end of training is taken over."""
NONE = "—"
PAIRS = {64: 256, 512: 64, math.inf: 16}
"""Pairs of sequences of an interchange, by the longest sequences that they are for. Time and memory
grow with the square of the length."""

BETA_HEADER = (
    "model",
    "sequences",
    "optimum",
    "by weights (R²)",
    "by attention (R²)",
    "by output (R²)",
    "gain (R²)",
    "branch",
)


def beta_row(name: str, checkpoint: Checkpoint) -> Row:
    """β at the three levels at which it can be read."""
    found = recover_beta(checkpoint.model, checkpoint.task)
    weights = NONE
    if not math.isnan(found.weights):
        weights = f"{found.weights:.1f} ({found.weights_r2:.2f})"
    return (
        name,
        str(found.n_sequences),
        f"{found.optimal:.1f}",
        weights,
        f"{found.attention:.1f} ± {found.attention_stderr:.1f} ({found.attention_r2:.2f})",
        f"{found.output:.1f} ± {found.output_stderr:.1f} ({found.output_r2:.2f})",
        f"{found.gain:.2f} ({found.gain_r2:.2f})",
        found.branch,
    )


TRANSITION_HEADER = ("model", "sequences", *READINGS.values(), "control")


@cache
def transition_of(name: str) -> TransitionRecovery:
    """All readings of π; two tables show them."""
    checkpoint = load_checkpoint(name)
    return recover_transition(checkpoint.model, checkpoint.task)


def variation_row(name: str, checkpoint: Checkpoint) -> Row:
    """Total variation of every reading of π, and of the control."""
    found = transition_of(name)
    cells = [f"{found.total_variation[reading]:.4f}" for reading in READINGS]
    return (name, str(found.n_sequences), *cells, f"{found.control_variation:.3f}")


def divergence_row(name: str, checkpoint: Checkpoint) -> Row:
    """Row KL of every reading of π, and of the control."""
    found = transition_of(name)
    cells = [f"{found.row_kl[reading]:.4f}" for reading in READINGS]
    return (name, str(found.n_sequences), *cells, f"{found.control_kl:.3f}")


ALGORITHM_HEADER = ("model", "sequences", "best (not distinguished)", "beyond uniform", *ESTIMATORS)


def algorithm_row(name: str, checkpoint: Checkpoint) -> Row:
    """How far the predictions are from every estimator, and which one is best."""
    found = identify_algorithm(checkpoint.model, checkpoint.task)
    tied = f" ({', '.join(found.tied)})" if found.tied else ""
    cells = []
    for estimator in ESTIMATORS:
        divergence = found.divergences.get(estimator)
        cells.append(NONE if divergence is None else f"{divergence:.1e}")
    beyond = f"{found.beyond_uniform:.3f}"
    return (name, str(found.n_held), found.best + tied, beyond, *cells)


def known_variables() -> dict[str, Variable]:
    """The variables of all algorithms by name."""
    found: dict[str, Variable] = {}
    for algorithm in ALGORITHMS.values():
        for variable in algorithm.variables:
            found.setdefault(variable.name, variable)
    return found


def interchange_row(name: str, checkpoint: Checkpoint) -> Row:
    """The interchange of every variable that the model's algorithm has."""
    model, task = checkpoint.model, checkpoint.task
    length = model.config.length
    n_pairs = next(count for longest, count in PAIRS.items() if length <= longest)
    base = task.sample(n_pairs, length, seed=1).tokens
    source = task.sample(n_pairs, length, seed=2).tokens
    explanation = explain(model, task)
    own = {variable.name for variable in explanation.algorithm.variables}
    cells = []
    for variable in known_variables():
        if variable not in own:
            cells.append(NONE)
            continue
        found = interchange(model, task, base, source, variable, explanation=explanation)
        controls = f"{found.control_r2:.2f}, {found.mismatched_r2:.2f}, {found.mean_r2:.2f}"
        cells.append(f"**{found.r2:.3f}** ± {found.r2_stderr:.3f} ({controls}) {found.site}")
    return (name, str(n_pairs), *cells)


PROGRAM_HEADER = (
    "model",
    "sequences",
    "KL(model ‖ program)",
    "KL(model ‖ one step)",
    "share",
    "constants",
    "terms that matter",
    "their constants",
    "KL to the truth without the others",
)
PROGRAM_LENGTH = 256
"""Longer models are not decompiled: the effort grows with the square of the length."""
PROGRAM_SEQUENCES, PROGRAM_SEED = 4096, 1
JUDGED = {64: 1024, 128: 512, 256: 256}
"""Sequences that terms are judged on, by length."""


def can_decompile(name: str) -> bool:
    """Whether a model of the zoo is decompiled."""
    model = read_config(ZOO / name)["model"]
    return model["n_layers"] == 3 and model["length"] <= PROGRAM_LENGTH


def program_row(name: str, checkpoint: Checkpoint) -> Row:
    """A model's program, how near it is to the model, and which of its terms matter."""
    model, task = checkpoint.model, checkpoint.task
    length = model.config.length
    found = decompile(model, task, n_sequences=JUDGED[length])
    tokens = task.sample(PROGRAM_SEQUENCES, length, PROGRAM_SEED).tokens
    raw = predictions_of(model, tokens)
    program = to_distribution(found.predict(tokens), OUTPUT_FLOOR)
    values = kl_divergence(to_distribution(raw, OUTPUT_FLOOR), program)
    kl = values.mean().item()
    one_step = ESTIMATORS["one_step"].fit(task.evidence(tokens), raw).divergence
    return (
        name,
        str(JUDGED[length]),
        f"{kl:.1e} ± {mean_stderr(values):.0e}",
        f"{one_step:.1e}",
        f"{kl / one_step:.1%}",
        f"{found.n_constants:,}",
        ", ".join(found.short_terms),
        f"{found.short_n_constants:,}",
        f"{found.short_truth:+.1e} ± {found.short_truth_stderr:.0e}",
    )


ZOO_HEADER = (
    "model",
    "recipe",
    "steps",
    "KL",
    "over one-step MD",
    "median",
    "over two-step MD",
    "β; optimum (range within one standard error)",
    "gain (R²)",
    "branch",
    "plateau left by step",
    "branch from step",
)


def zoo_row(name: str, checkpoint: Checkpoint) -> Row:
    """The end of a model's training."""
    last = checkpoint.history[-1]
    task_seed = checkpoint.config["seeds"]["task"]
    held_out = held_out_of(checkpoint.task.order, task_seed, checkpoint.model.config.length)
    ratios = [entry["ratio"] for entry in checkpoint.history[-LAST_EVALUATIONS:]]
    events = trace_development(checkpoint).events
    return (
        name,
        checkpoint.config["recipe"]["name"],
        str(last["step"]),
        f"{last['kl']:.5f}",
        f"{last['ratio']:.3f}",
        f"{median(ratios):.3f}",
        f"{last['kl'] / held_out.kl['two_step']:.3f}",
        f"{last['beta']:.1f}; {held_out.tuned.beta_text()}",
        f"{last['gain']:.2f} ({last['gain_r2']:.2f})",
        last["branch"],
        _step(events["left_plateau"]),
        _step(events["branch"]) if last["branch"] != "undecided" else "never",
    )


@cache
def held_out_of(order: int, task_seed: int, length: int) -> HeldOut:
    """The held-out set of one of the zoo's tasks, without the exact posterior mean."""
    return HeldOut.prepare(zoo_task(order, task_seed), length, bayes=False)


def _step(step: int | None) -> str:
    return "never" if step is None else str(step)
