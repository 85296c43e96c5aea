"""Which algorithm a model's depth allows, with the constants that explain its predictions best.

Report, probes, interventions and workbench all use one `Explanation`, so that a page never shows
two values of one constant. It is a function of the model, the task, the number of sequences and
the seed; the same arguments give the same explanation.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.algorithms.base import Algorithm
from mtdinterp.algorithms.precision import Combination, precision_of
from mtdinterp.checks import ArrayLike, check_count
from mtdinterp.construction.base import Implementation, LayerRole, implementations_for
from mtdinterp.criteria import EXPLAINED, PRICE, RESOLUTION
from mtdinterp.errors import CannotCompute, NotApplicable
from mtdinterp.estimators.base import Constants, Fit
from mtdinterp.evidence import Evidence
from mtdinterp.formatting import counted
from mtdinterp.metrics import share_explained
from mtdinterp.models.lens import LensTransformer
from mtdinterp.readings.predictions import predictions_of, probe_sequences
from mtdinterp.registry import ALGORITHMS
from mtdinterp.tasks.base import Task

EXPLAINING_SEED = 31
"""First part of the sequences' seed, so that they differ from those of the probes."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """An algorithm and its constants, read from a model once."""

    algorithm: Algorithm
    constants: Constants
    """The constants nearest to the model's predictions, unless `source` says otherwise."""
    source: str
    """Where the constants come from, in a few words."""
    implementation: Implementation | None
    """How the model's architecture could carry out the algorithm; None if that is not known."""
    no_implementation: str
    """Why there is none, in one sentence; empty if there is one."""
    explained: float
    """Share of how the predictions differ from those of uniform weights that the algorithm
    explains.
    """
    task: Task = field(repr=False)
    length: int
    n_sequences: int
    seed: int | None
    """The seed of the sequences; None if they were given."""
    tokens: Int[Tensor, "batch pos"] = field(repr=False)
    """The sequences that the constants were fitted on."""
    predictions: Float64[Tensor, "batch vocab"] = field(repr=False)
    """The model's predictions after the sequences."""
    nearest: Fit
    """The constants nearest to the predictions, even if they explain too little to be used."""
    stderrs: Constants
    """Standard errors of the nearest constants."""
    combinations: tuple[Combination, ...]
    """Combinations of the nearest constants from best to worst known."""
    fitted: bool = False
    """Whether the constants are the model's own."""
    identified: bool = False
    """Whether the predictions determine every combination of the constants."""
    at_bound: tuple[str, ...] = ()
    """Constants that ended on a bound of their range."""

    @property
    def roles(self) -> tuple[LayerRole, ...] | None:
        """What each layer does in the reference construction, if there is one."""
        return self.implementation.roles if self.implementation is not None else None

    def reference(
        self, constants: Constants | None = None, delta: float | None = None
    ) -> LensTransformer | None:
        """The reference construction with these constants (or others), or None if none is known."""
        if self.implementation is None:
            return None
        chosen = self.constants if constants is None else constants
        return self.implementation.construct(self.task, self.length, chosen, delta)

    def describe_constants(self) -> str:
        """The constants with their symbols and standard errors, and whether one is at a bound."""
        symbols = {constant.name: constant.symbol for constant in self.algorithm.constants}
        words = []
        for name, value in self.constants.items():
            stderr = self.stderrs.get(name)
            error = f" ± {stderr:.2g}" if self.fitted and stderr is not None else ""
            bound = " (at the bound of its range)" if name in self.at_bound else ""
            words.append(f"{symbols[name]} = {value:.3g}{error}{bound}")
        return ", ".join(words)

    def summary(self) -> str:
        """The explanation in a few sentences."""
        lines = [
            f"Algorithm: {self.algorithm.label} with {self.describe_constants()} ({self.source}).",
            f"It explains {self.explained:.1%} of how the predictions differ from those of "
            f"uniform weights ({counted(self.n_sequences, 'sequence')}, seed {self.seed}).",
        ]
        if self.no_implementation:
            lines.append(self.no_implementation)
        return "\n".join(lines)


def explain(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike | None = None,
    *,
    length: int | None = None,
    n_sequences: int = 1024,
    seed: int = 0,
) -> Explanation:
    """Choose the algorithm for a model and read its constants.

    A model whose architecture and depth have a construction is explained by that construction's
    algorithm. For any other model it is the algorithm nearest to the predictions, and the
    explanation says why there is no construction.

    Args:
        model: any hooked model.
        task: the model's task.
        tokens: sequences [batch, pos] to fit the constants on; drawn from the task if None.
        length: length of the drawn sequences; the model's own if None.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.

    Returns:
        The explanation.
    """
    if tokens is None:
        count = check_count("n_sequences", n_sequences, minimum=8)
        size = model.config.length if length is None else length
        drawn = task.sample(count, size, [EXPLAINING_SEED, seed]).tokens
    sequences = probe_sequences(model, task, drawn if tokens is None else tokens, 0, 0)
    size = sequences.shape[1]
    evidence = task.evidence(sequences)
    predictions = predictions_of(model, sequences)
    if not predictions.isfinite().all():
        raise ValueError("model: the predictions are not finite numbers")
    known: dict[str, Implementation] = {}
    reason = ""
    try:
        for entry in implementations_for(model.config, task):
            known.setdefault(entry.algorithm, entry)
    except NotApplicable as error:
        reason = str(error)
    # Without a construction of this depth, every algorithm is a candidate.
    algorithm, fit = nearest_algorithm(evidence, predictions, known or ALGORITHMS)
    implementation = known.get(algorithm.name)
    share = share_explained(
        evidence.divergence(predictions, algorithm.weights(evidence, **fit.constants)),
        evidence.divergence(predictions, evidence.uniform),
    )
    common: dict[str, Any] = {
        "algorithm": algorithm,
        "implementation": implementation,
        "no_implementation": reason,
        "explained": share,
        "task": task,
        "length": size,
        "n_sequences": len(sequences),
        "seed": seed if tokens is None else None,
        "tokens": sequences,
        "predictions": predictions,
        "nearest": fit,
    }
    precision = precision_of(algorithm, evidence, predictions, fit.constants)
    common |= {"stderrs": precision.stderrs, "combinations": precision.combinations}
    if share < EXPLAINED:
        constants, source = _usual_constants(algorithm, task, size, evidence)
        return Explanation(constants=constants, source=source, **common)
    return Explanation(
        constants=fit.constants,
        source="fitted to the model's predictions",
        fitted=True,
        identified=precision.identified and not fit.at_bound,
        at_bound=fit.at_bound,
        **common,
    )


def nearest_algorithm(
    evidence: Evidence, predictions: Float64[Tensor, "batch vocab"], names: Iterable[str]
) -> tuple[Algorithm, Fit]:
    """The algorithm nearest to the predictions after penalising its constants.

    Args:
        evidence: the evidence of the sequences.
        predictions: the predictions to explain.
        names: the algorithms to choose from.

    Returns:
        The algorithm and its fit.

    Raises:
        CannotCompute: if none of them can be computed on this evidence.
    """
    fits: dict[str, Fit] = {}
    reasons = []
    for name in names:
        try:
            fits[name] = ALGORITHMS[name].fit(evidence, predictions)
        except CannotCompute as error:
            reasons.append(str(error))
    if not fits:
        raise CannotCompute(f"no algorithm can be computed here: {'; '.join(reasons)}")

    def price(name: str) -> float:
        extra = max(0, len(fits[name].constants) - 1)
        return (fits[name].divergence + RESOLUTION) * PRICE**extra

    best = min(fits, key=price)
    return ALGORITHMS[best], fits[best]


def _usual_constants(
    algorithm: Algorithm, task: Task, length: int, evidence: Evidence
) -> tuple[Constants, str]:
    """Constants for a reference if the model does not determine them: tuned to the truth, or
    defaults.
    """
    try:
        tuned = algorithm.tune(task, length)
    except CannotCompute as error:
        return algorithm.default_constants(evidence), f"a default, because {error}"
    if tuned.at_bound:
        return algorithm.default_constants(evidence), "a default, because tuning found no optimum"
    return tuned.constants, "tuned to the truth, because the model does not determine them"
