"""The posterior mean by whatever method can compute it: integration, and sampling beyond that."""

from dataclasses import dataclass

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_concentration, check_option, check_order
from mtdinterp.errors import RuleTooLarge
from mtdinterp.estimators.exact_bayes import MAX_NODES, posterior_mean_of
from mtdinterp.estimators.gibbs import sampled_posterior_mean
from mtdinterp.evidence import Evidence, evidence_of

METHODS = ("auto", "exact", "gibbs")


@dataclass(frozen=True, eq=False)
class PosteriorMean:
    """Posterior means, and how well they are known."""

    weights: Float64[Tensor, "batch lag"]
    stderr: Float64[Tensor, "batch lag"] | None
    """Standard errors of sampled means; None if they are exact."""
    method: str
    """"exact" or "gibbs"."""


def posterior_mean(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    concentration: ArrayLike | float = 1.0,
    method: str = "auto",
    *,
    tolerance: float = 1e-8,
    max_nodes: int = MAX_NODES,
    seed: int = 0,
) -> PosteriorMean:
    """E[weights | tokens] under a Dirichlet prior, exactly or with a standard error.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.
        concentration: α, one number or one per lag.
        method: "exact" integrates, "gibbs" samples (Rao-Blackwellised), and "auto" samples only if
            integration would need too many nodes.
        tolerance: accuracy of every entry if it is integrated, at least 1e-12.
        max_nodes: the largest rule to use.
        seed: seed of the sampler.

    Returns:
        Posterior means of every sequence, with standard errors if they were sampled.

    Raises:
        RuleTooLarge: with method "exact", if a sequence needs more than `max_nodes` nodes.
    """
    check_option("method", method, METHODS)
    alpha = tuple(as_concentration(concentration, check_order(order)).tolist())
    evidence = evidence_of(transition, tokens, order, alpha)
    return posterior_mean_by(evidence, method, tolerance, max_nodes, seed)


def posterior_mean_by(
    evidence: Evidence,
    method: str = "auto",
    tolerance: float = 1e-8,
    max_nodes: int = MAX_NODES,
    seed: int = 0,
) -> PosteriorMean:
    """Like `posterior_mean`, from evidence with its own prior.

    Args:
        evidence: the evidence of the sequences.
        method: see `posterior_mean`.
        tolerance: accuracy of every entry if it is integrated.
        max_nodes: the largest rule to use.
        seed: seed of the sampler.

    Returns:
        Posterior means of every sequence, with standard errors if they were sampled.
    """
    if method != "gibbs":
        try:
            return PosteriorMean(posterior_mean_of(evidence, tolerance, max_nodes), None, "exact")
        except RuleTooLarge:
            if method == "exact":
                raise
    weights, stderr = sampled_posterior_mean(evidence, seed)
    return PosteriorMean(weights, stderr, "gibbs")
