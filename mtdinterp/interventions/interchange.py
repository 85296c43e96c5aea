"""Causal abstraction: swap a variable between two sequences, in the model and in the algorithm.

The model runs on a base sequence, with one of its sites as it is on a source sequence. The
algorithm, with the constants read from the model, does the same with one of its variables. If the
site holds the variable, both predictions move in the same way:

    R² = 1 - Σ‖Δmodel - Δalgorithm‖² / Σ‖Δalgorithm‖²

The first half of the pairs chooses the best site; the second half gives the reported numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.algorithms.base import Values, Variable
from mtdinterp.checks import ArrayLike
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import BEYOND_CONTROLS, NOTHING_MOVES, USED_R2
from mtdinterp.errors import NotApplicable
from mtdinterp.estimators.base import Constants
from mtdinterp.evidence import Evidence
from mtdinterp.explanation import Explanation, explain
from mtdinterp.formatting import counted, r2_text, with_error
from mtdinterp.interventions.reporting import unknown_constants
from mtdinterp.interventions.sites import Site, candidate_sites
from mtdinterp.interventions.subspaces import Learned, SubspaceLearner, reading_layer
from mtdinterp.interventions.swaps import Swaps
from mtdinterp.metrics import kl_divergence, paired_ratio, r_squared, to_distribution
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Block, Heading, Table, Text
from mtdinterp.readings import probe_sequences
from mtdinterp.results import Result
from mtdinterp.tasks.base import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Interchange(Result):
    """How well the best site of a model represents a variable.

    `n_sequences` counts the pairs behind the reported numbers; none of them was used to choose the
    site. `seed` is None because the sequences are given.
    """

    variable: str
    symbol: str
    """How formulas write the variable."""
    site: str
    """The best site, in words; with several heads it names the head."""
    r2: float
    """NaN if the algorithm does not move."""
    r2_stderr: float
    """Standard error of `r2` over pairs."""
    kl: float
    """Mean KL(algorithm ‖ model), both with the swap."""
    control_r2: float
    """Mean R² of random sites: moves of the same size in random directions of the stream, or the
    attention of another layer; NaN if the model has no other layer.
    """
    mismatched_r2: float
    """R² of the same site with the value on the source of another pair."""
    mean_r2: float
    """R² of the same site at its mean over sources, which only removes the value on the base."""
    sites: dict[str, float]
    """R² of every candidate site, on the pairs used to choose the site."""
    n_choosing: int
    """The number of other pairs, which were used to choose the site."""
    control_seed: int
    """The seed of the swapped positions, random sites and learned subspace."""
    explanation: Explanation = field(repr=False)
    """The algorithm and its constants."""
    learned: Learned | None = None

    @property
    def constants(self) -> Constants:
        """The constants of the algorithm."""
        return self.explanation.constants

    @property
    def identified(self) -> bool:
        """Whether the model's predictions determine these constants."""
        return self.explanation.identified

    def summary(self) -> str:
        """The best site with its controls, then the other sites and what limits the result."""
        lines = [
            f"{self.variable}: swapping {self.site} moves the prediction as in the algorithm, "
            f"with R² {_r2_text(self)} (random site {r2_text(self.control_r2)}, another source "
            f"{r2_text(self.mismatched_r2)}, mean {r2_text(self.mean_r2)}), KL {self.kl:.2e}, "
            f"{counted(self.n_sequences, 'pair')}."
        ]
        others = [f"{name} {r2_text(r2)}" for name, r2 in self.sites.items() if name != self.site]
        if others:
            lines.append(f"  Other sites: {', '.join(others)}.")
        if self.explanation.no_implementation:
            lines.append(f"  No named block was tried. {self.explanation.no_implementation}")
        caution = unknown_constants(self.explanation)
        if caution:
            lines.append(f"  This is inconclusive, because {caution}.")
        if self.learned is not None:
            lines.append(
                f"  A learned subspace of rank {self.learned.rank}: R² {self.learned.r2:.3f} on "
                f"new pairs (control {self.learned.control_r2:.3f})."
            )
        return "\n".join(lines)

    def claims(self) -> tuple[Claim, ...]:
        """Whether the site is used as the variable.

        A site that does no better than a random one, than another source or than its own mean is
        not the variable.
        """
        controls = (self.control_r2, self.mismatched_r2, self.mean_r2)
        reason = unknown_constants(self.explanation)
        if not math.isfinite(self.r2):
            reason = "the swap does not move the algorithm's prediction"
        if reason:
            status = Status.UNDECIDABLE
        else:
            best_control = max(value for value in controls if math.isfinite(value))
            beats_controls = self.r2 - best_control >= BEYOND_CONTROLS
            status = decide(self.r2 >= USED_R2 and beats_controls)
        claim = Claim(
            claim=f"Swapping {self.site} moves the predictions as swapping {self.symbol} does in "
            "the algorithm",
            status=status,
            evidence="R² of the interchange",
            number=_r2_text(self),
            threshold=f"R² ≥ {USED_R2:g}, and {BEYOND_CONTROLS:g} above every control",
            control=(
                f"random site {r2_text(self.control_r2)}, another source "
                f"{r2_text(self.mismatched_r2)}, the site's mean {r2_text(self.mean_r2)}"
            ),
            n_sequences=self.n_sequences,
            seed=self.seed,
            reason=reason,
        )
        return (claim,)

    def blocks(self) -> list[Block]:
        """A table with one row; `interchange_blocks` makes one table of several results."""
        return interchange_blocks([self])


def _r2_text(found: Interchange) -> str:
    """The R² with its standard error, which means nothing for an R² below -1."""
    if found.r2 < -1:
        return r2_text(found.r2)
    return with_error(found.r2, found.r2_stderr, 3)


def interchange_blocks(results: Sequence[Interchange]) -> list[Block]:
    """One table of several interchanges, with a note for each reason why they are inconclusive."""
    if not results:
        return []
    rows = []
    for found in results:
        row = (
            found.variable.replace("_", " "),
            found.site,
            _r2_text(found),
            r2_text(found.control_r2, 3),
            r2_text(found.mismatched_r2, 3),
            r2_text(found.mean_r2, 3),
            str(found.n_sequences),
        )
        rows.append(row)
    header = (
        "variable",
        "best site",
        "R²",
        "random site",
        "another source",
        "the site's mean",
        "pairs",
    )
    blocks: list[Block] = [Heading("Interchange"), Table(header, tuple(rows))]
    notes = [found.explanation.no_implementation for found in results]
    for found in results:
        caution = unknown_constants(found.explanation)
        if caution:
            notes.append(f"These rows are inconclusive, because {caution}.")
    different = tuple(dict.fromkeys(note for note in notes if note))
    if different:
        blocks.append(Text(different, "soft"))
    return blocks


def interchange(
    model: LensTransformer,
    task: Task,
    base: ArrayLike,
    source: ArrayLike,
    variable: str = "mean_responsibilities",
    *,
    learn_rank: int | None = None,
    seed: int = 0,
    explanation: Explanation | None = None,
) -> Interchange:
    """Swap a variable from `source` into `base` at every site that may hold it.

    A variable that lives at every position (γ) is swapped at a random half of them, because
    swapping all would swap its mean as well. Any other variable is swapped at the last position.

    Args:
        model: any hooked model.
        task: the task that the sequences come from.
        base: sequences [pair, pos] that the model runs on, at least four.
        source: sequences of the same shape that the variable is taken from.
        variable: one of the algorithm's variables.
        learn_rank: if given, also train a subspace of this dimension to hold the variable.
        seed: seed of the swapped positions, the random sites and the explanation.
        explanation: the algorithm and its constants; computed with the seed if None.

    Returns:
        The best site with its R², its controls and the R² of all other sites.

    Raises:
        NotApplicable: if the model is too shallow to hold the variable.
    """
    base_tokens, source_tokens = _checked_pairs(model, task, base, source)
    if explanation is None:
        explanation = explain(model, task, length=base_tokens.shape[1], seed=seed)
    swapped_variable = explanation.algorithm.variable(variable)
    sites = candidate_sites(model, explanation, swapped_variable)
    if not sites:
        raise NotApplicable(
            f"variable: a model of {counted(len(model.blocks), 'layer')} has no site for {variable}"
        )
    generator = torch.Generator().manual_seed(seed)
    steps = _half_of(base_tokens.shape[1] - task.warm_up, generator)
    unswapped, swapped = _algorithm_predictions(
        explanation,
        task.evidence(base_tokens),
        task.evidence(source_tokens),
        swapped_variable,
        steps,
    )
    expected = swapped - unswapped
    positions = (steps + task.warm_up).tolist()
    swaps = Swaps(model, base_tokens, source_tokens, positions, generator)
    half = len(base_tokens) // 2
    choosing = slice(0, half)
    judging = slice(half, None)

    movements = {site: swaps.swap(site) for site in sites}
    tried = {site: _r2(movements[site], expected, choosing) for site in sites}
    best = _best_of(tried)
    movement = movements[best]
    after = to_distribution((swaps.before + movement)[judging])
    random_r2 = [_r2(moved, expected, judging) for moved in swaps.swap_random(best)]
    learned = None
    if learn_rank is not None:
        layer = reading_layer(model, explanation, swapped_variable)
        learner = SubspaceLearner(model, layer, base_tokens, source_tokens, learn_rank, seed)
        learned = learner.learn(unswapped, swapped)
    return Interchange(
        variable=variable,
        symbol=swapped_variable.symbol,
        site=best.name,
        r2=_r2(movement, expected, judging),
        r2_stderr=_r2_stderr(movement[judging], expected[judging]),
        kl=kl_divergence(swapped[judging], after).mean().item(),
        control_r2=fmean(random_r2) if random_r2 else math.nan,
        mismatched_r2=_r2(swaps.swap_mismatched(best), expected, judging),
        mean_r2=_r2(swaps.swap_mean(best), expected, judging),
        sites={site.name: found for site, found in tried.items()},
        n_choosing=half,
        control_seed=seed,
        explanation=explanation,
        learned=learned,
        n_sequences=len(base_tokens) - half,
        seed=None,
    )


def _checked_pairs(
    model: LensTransformer, task: Task, base: ArrayLike, source: ArrayLike
) -> tuple[Int[Tensor, "pair pos"], Int[Tensor, "pair pos"]]:
    """Both sets of sequences, if they fit the model, the task and each other."""
    base_tokens = probe_sequences(model, task, base, 0, 0, least=4)
    source_tokens = probe_sequences(model, task, source, 0, 0, least=4)
    if base_tokens.shape != source_tokens.shape:
        raise ValueError(
            f"source: expected the base tokens' shape {list(base_tokens.shape)}, "
            f"got {list(source_tokens.shape)}"
        )
    return base_tokens, source_tokens


def _half_of(n_steps: int, generator: torch.Generator) -> Tensor:
    """A random half of the steps, in order; at least one."""
    shuffled = torch.randperm(n_steps, generator=generator)
    return shuffled[: max(1, n_steps // 2)].sort().values


def _algorithm_predictions(
    explanation: Explanation,
    base: Evidence,
    source: Evidence,
    variable: Variable,
    steps: Tensor,
) -> tuple[Float64[Tensor, "batch vocab"], Float64[Tensor, "batch vocab"]]:
    """What the algorithm predicts for the base, without and with the swap.

    Args:
        explanation: the algorithm and its constants.
        base: evidence of the base sequences.
        source: evidence of the source sequences.
        variable: the variable to swap.
        steps: the steps at which it is swapped, if it has a value at every step.

    Returns:
        Both predictions.
    """
    algorithm = explanation.algorithm
    constants = explanation.constants
    own = algorithm.run(base, None, **constants)
    value = algorithm.run(source, None, **constants)[variable.name]
    if variable.per_step:
        mixed = own[variable.name].clone()
        mixed[:, steps] = value[:, steps]
        value = mixed
    given: Values = {variable.name: value}
    swapped = algorithm.run(base, given, **constants)
    return base.predict(own["weights"]), base.predict(swapped["weights"])


def _best_of(tried: dict[Site, float]) -> Site:
    """The site with the largest R²; within 0.01 the first, which is the most specific one."""
    return max(tried, key=lambda site: round(tried[site], 2))


def _r2(
    movement: Float64[Tensor, "batch vocab"],
    expected: Float64[Tensor, "batch vocab"],
    pairs: slice,
) -> float:
    """R² on some of the pairs; NaN if the algorithm's movement is only rounding error."""
    wanted = expected[pairs]
    return r_squared(movement[pairs], wanted, least=NOTHING_MOVES * len(wanted))


def _r2_stderr(
    movement: Float64[Tensor, "batch vocab"], expected: Float64[Tensor, "batch vocab"]
) -> float:
    """Standard error of R² over pairs: that of Σ errors / Σ squares, a ratio of paired sums."""
    errors = (movement - expected).square().sum(-1)
    squares = expected.square().sum(-1)
    if not squares.mean().item() > NOTHING_MOVES:
        return math.nan
    return paired_ratio(errors, squares).stderr
