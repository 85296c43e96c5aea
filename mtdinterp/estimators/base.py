"""What an estimator is: a rule from evidence to mixture weights, with named constants.

Estimators are registered by name, and everything that compares them iterates the registry. A new
one is a file with a class like this:

    @register_estimator
    class FixedLag(Estimator):
        name, label = "fixed_lag", "always lag 1"

        def weights(self, evidence): ...        # -> [batch, component]

An estimator with constants declares them, and `fit` finds the values that explain given
predictions best. Fits are hundreds of small operations, which torch does faster on one thread.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ROW_SUM_TOLERANCE, check_count, check_option
from mtdinterp.errors import NothingToTune
from mtdinterp.estimators.fitting import Constant, Constants, Fit, minimise_constants
from mtdinterp.evidence import Evidence
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.providers import failures_named
from mtdinterp.registry import ESTIMATORS
from mtdinterp.style import Style
from mtdinterp.tasks.base import Task

TUNING_TARGETS = ("truth", "posterior_mean")
"""What constants can be tuned to: the paper's text uses the first, its appendix the second."""


class Estimator(ABC):
    """A rule from evidence to mixture weights."""

    name: str
    """The name in code, files and on the command line."""
    label: str
    """A short description that can continue a sentence."""
    constants: tuple[Constant, ...] = ()
    style: Style | None = None
    """How figures draw it; derived from the name if None."""
    in_context: bool = True
    """Whether the weights depend on the sequence; otherwise nothing is inferred in context."""
    rank: float = 100.0
    """Its place in listings, the simplest first; decides between estimators that tie."""
    grid_points: int = 25
    """The number of values from which the search for a single constant starts."""
    tolerance: float = 1e-3
    """Relative accuracy of a single fitted constant."""

    @abstractmethod
    def weights(self, evidence: Evidence, **constants: float) -> Float64[Tensor, "batch component"]:
        """Mixture weights for every sequence.

        Raises:
            CannotCompute: if the estimator has no answer here.
        """

    def constants_for(self, evidence: Evidence) -> tuple[Constant, ...]:
        """The constants for this evidence; how many there are may depend on the number of
        components.
        """
        return self.constants

    def derived(self, evidence: Evidence, constants: Constants) -> Constants:
        """Other numbers computed from the constants, shown next to them."""
        return {}

    def accuracy_note(self, evidence: Evidence) -> str | None:
        """How accurate the weights are, if they are not computed to rounding.

        Args:
            evidence: the evidence that the weights were computed from. The same object, so that an
                estimator can keep what it knows about it.

        Returns:
            A description that can follow the label and a colon, or None if there is nothing to say.
        """
        return None

    def predict(self, evidence: Evidence, **constants: float) -> Float64[Tensor, "batch vocab"]:
        """The next-token distribution with the estimator's weights."""
        return evidence.predict(self.checked_weights(evidence, constants))

    def checked_weights(
        self, evidence: Evidence, constants: Constants
    ) -> Float64[Tensor, "batch component"]:
        """The weights, which must be a distribution over components for every sequence.

        Args:
            evidence: the evidence of the sequences.
            constants: values of the constants, by name.

        Returns:
            The weights.

        Raises:
            PluginFailed: if the estimator comes from a plugin and its code fails.
        """
        with failures_named("estimator", self.name, ESTIMATORS.provider(self.name)):
            weights = self.weights(evidence, **constants)
            check_weights(self.name, evidence, weights)
        return weights

    @torch_on_one_thread()
    def fit(self, evidence: Evidence, predictions: Float64[Tensor, "batch vocab"]) -> Fit:
        """The constants with the smallest mean KL(predictions ‖ estimator).

        Raises:
            CannotCompute: if the estimator has no answer on this evidence.
        """

        def per_sequence(values: Constants) -> Float64[Tensor, " batch"]:
            return evidence.divergence(predictions, self.checked_weights(evidence, values))

        return minimise_constants(
            per_sequence, self.constants_for(evidence), self.grid_points, self.tolerance
        )

    def tune(
        self, task: Task, length: int, target: str = "truth", seed: int = 0, n_sequences: int = 5000
    ) -> Fit:
        """The constants that predict best on sequences drawn from the task.

        Args:
            task: the task to draw sequences from.
            length: tokens per sequence.
            target: "truth" (the true next-token distribution) or "posterior_mean".
            seed: seed for drawing the sequences.
            n_sequences: number of sequences.

        Returns:
            The fit, with the mean KL(target ‖ estimator) it reaches. If the optimum is flat, its
            minimiser is noise, and the constant is the geometric middle of its interval.

        Raises:
            NothingToTune: if no prediction depends on the weights.
        """
        data = task.sample(check_count("n_sequences", n_sequences), length, seed)
        evidence = task.evidence(data.tokens)
        if self.constants_for(evidence):
            check_tunable(evidence)
        wanted = target_predictions(evidence, data.next_probs, target)
        fit = self.fit(evidence, wanted)
        if not fit.flat:
            return fit
        (constant,) = self.constants_for(evidence)
        value = fit.intervals[constant.name].middle((constant.low, constant.high))
        settled = {constant.name: value}
        reached = evidence.divergence(wanted, self.checked_weights(evidence, settled))
        return replace(fit, constants=settled, divergence=reached.mean().item(), at_bound=())


def check_tunable(evidence: Evidence) -> None:
    """Refuse evidence on which no constant can be better than another.

    Args:
        evidence: the evidence to tune on.

    Raises:
        NothingToTune: if no prediction depends on the weights.
    """
    if evidence.weights_matter:
        return
    reason = "all components predict the same, as with equal rows of π"
    if evidence.n_components == 1:
        reason = "there is only one component"
    raise NothingToTune(
        f"all predictions are the same whatever the weights ({reason}), so there is nothing to tune"
    )


def fit_constants(
    estimator: Estimator, evidence: Evidence, predictions: Float64[Tensor, "batch vocab"]
) -> Fit:
    """Fit an estimator, without evaluating one that has nothing to fit.

    Args:
        estimator: the estimator.
        evidence: the evidence of the sequences to fit on.
        predictions: what to explain.

    Returns:
        The fit; its divergence is NaN if there was nothing to fit.
    """
    if not estimator.constants_for(evidence):
        return Fit({}, math.nan)
    return estimator.fit(evidence, predictions)


def accuracy_notes(names: Iterable[str], evidence: Evidence) -> dict[str, str]:
    """What estimators say about the accuracy of their weights.

    Args:
        names: the estimators.
        evidence: the evidence that their weights were computed from.

    Returns:
        The notes of those that have one, by name.
    """
    notes = {}
    for name in names:
        with failures_named("estimator", name, ESTIMATORS.provider(name)):
            note = ESTIMATORS[name].accuracy_note(evidence)
        if note is not None:
            notes[name] = note
    return notes


def check_weights(name: str, evidence: Evidence, weights: Any) -> None:
    """Refuse what cannot be mixture weights, in a sentence that names the estimator.

    Args:
        name: of the estimator.
        evidence: what the weights were estimated from.
        weights: what the estimator returned.
    """
    if not isinstance(weights, Tensor):
        raise ValueError(
            f"estimator {name!r}: expected weights as a torch tensor, got {type(weights).__name__}"
        )
    wanted = (len(evidence), evidence.n_components)
    if tuple(weights.shape) != wanted or weights.dtype != torch.float64:
        raise ValueError(
            f"estimator {name!r}: expected float64 weights of shape {list(wanted)}, got "
            f"{weights.dtype} of shape {list(weights.shape)}"
        )
    if (weights.sum(-1) - 1).abs().max() > ROW_SUM_TOLERANCE:
        raise ValueError(f"estimator {name!r}: expected weights that sum to 1 for every sequence")


def target_predictions(
    evidence: Evidence, truth: Float64[Tensor, "batch vocab"], target: str
) -> Float64[Tensor, "batch vocab"]:
    """The predictions that constants are tuned to.

    Args:
        evidence: the evidence of the sequences.
        truth: their true next-token distributions.
        target: one of `TUNING_TARGETS`.

    Returns:
        The target's next-token distributions.
    """
    if check_option("target", target, TUNING_TARGETS) == "truth":
        return truth
    return ESTIMATORS["exact_bayes"].predict(evidence)
