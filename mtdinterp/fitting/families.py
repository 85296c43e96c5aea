"""Every estimator that a model is compared with: a rule from the evidence of a sequence to mixture
weights.

A family has none, one or four constants; its prediction is Σ_g w_g·π[y_{T-g}]. Fits are hundreds of
small operations, which torch does faster on one thread.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.estimators import exact_posterior_mean, expectation_maximization
from mtdinterp.estimators.entropic import entropic_map
from mtdinterp.estimators.mirror import learning_rate_from_beta
from mtdinterp.estimators.reweighted import TwoStepConstants, reweight
from mtdinterp.estimators.tuning import minimise_on_grid
from mtdinterp.fitting.descent import (
    beta_of_theory,
    fit_beta,
    fit_several_steps,
    one_step_weights,
    several_steps_weights,
)
from mtdinterp.fitting.evidence import Evidence
from mtdinterp.fitting.two_step import fit_two_step

STRENGTHS = tuple(np.geomspace(0.05, 200, 13))
"""Where the strength of the entropy is looked for first."""
BAYES_TOLERANCE, BAYES_NODES = 1e-5, 200_000
"""For the exact posterior mean: fine enough to compare with, and the largest rule, beyond which it
is left out."""

Constants = dict[str, float]


@dataclass(frozen=True)
class Family:
    """An estimator with its constants; `fit` finds those that explain given predictions best."""

    words: str
    constants: tuple[str, ...]
    weights: Callable[[Evidence, Constants], Float64[Tensor, "batch lag"]]
    fit: Callable[[Evidence, Float64[Tensor, "batch vocab"]], Constants]

    @property
    def n_constants(self) -> int:
        return len(self.constants)


def _with_rate(evidence: Evidence, beta: float) -> Constants:
    return {
        "learning_rate": learning_rate_from_beta(beta, evidence.task.order, evidence.length),
        "beta": beta,
    }


def _nothing_to_fit(evidence: Evidence, given: Tensor) -> Constants:
    return {}


def _descent(steps: int) -> Family:
    return Family(
        f"{steps} steps of mirror descent",
        ("learning_rate",),
        lambda evidence, constants: several_steps_weights(evidence, constants["beta"], steps),
        lambda evidence, given: _with_rate(evidence, fit_several_steps(evidence, given, steps)),
    )


def _fit_entropic(evidence: Evidence, given: Tensor) -> Constants:
    def divergence(strength: float) -> float:
        return evidence.divergence(given, _entropic(evidence, {"strength": strength})).mean().item()

    return {"strength": minimise_on_grid(divergence, STRENGTHS, "strength", 1e-2, edges=True)[0]}


def _entropic(evidence: Evidence, constants: Constants) -> Tensor:
    task = evidence.task
    return entropic_map(
        task.transition, evidence.tokens, task.order, constants["strength"], tolerance=1e-6
    )


def _bayes(evidence: Evidence, constants: Constants) -> Tensor:
    task = evidence.task
    return exact_posterior_mean(
        task.transition,
        evidence.tokens,
        task.order,
        task.concentration,
        BAYES_TOLERANCE,
        BAYES_NODES,
    )


def _uniform(evidence: Evidence, constants: Constants) -> Tensor:
    return torch.full_like(evidence.mean_responsibilities, 1 / evidence.task.order)


def _maximum_likelihood(evidence: Evidence, constants: Constants) -> Tensor:
    return expectation_maximization(
        evidence.task.transition, evidence.tokens, evidence.task.order, tolerance=1e-6
    )


def _fit_construction(evidence: Evidence, given: Tensor) -> Constants:
    return fit_two_step(evidence, given)._asdict()


FAMILIES: dict[str, Family] = {
    "uniform": Family("uniform weights", (), _uniform, _nothing_to_fit),
    "one_step": Family(
        "one step of mirror descent",
        ("learning_rate",),
        lambda evidence, constants: one_step_weights(evidence, constants["beta"]),
        lambda evidence, given: _with_rate(evidence, fit_beta(evidence, given)),
    ),
    "one_step_theory": Family(
        "one step of mirror descent at the first-order rate",
        (),
        lambda evidence, _: one_step_weights(
            evidence, beta_of_theory(evidence.task, evidence.length)
        ),
        lambda evidence, _: _with_rate(evidence, beta_of_theory(evidence.task, evidence.length)),
    ),
    **{f"mirror_descent_{steps}": _descent(steps) for steps in (2, 3, 4, 5)},
    "maximum_likelihood": Family("maximum likelihood", (), _maximum_likelihood, _nothing_to_fit),
    "entropic": Family(
        "entropy-regularised maximum likelihood", ("strength",), _entropic, _fit_entropic
    ),
    "exact_bayes": Family("the exact posterior mean", (), _bayes, _nothing_to_fit),
    "two_step_construction": Family(
        "the two-step construction",
        TwoStepConstants._fields,
        lambda evidence, constants: reweight(
            evidence.responsibilities,
            torch.tensor(
                [constants[name] for name in TwoStepConstants._fields], dtype=torch.float64
            ),
        ),
        _fit_construction,
    ),
}
"""Every estimator that a model is compared with, by the name it has everywhere."""
WORDS = {name: family.words for name, family in FAMILIES.items()}
