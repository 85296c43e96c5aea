"""Gibbs sampling of the posterior over weights: the paper's stand-in for the exact posterior mean.

Alternates lags given weights (categorical) and weights given lag counts (Dirichlet), vectorised
over the batch. The exact posterior mean is in `exact_bayes`; this one is kept to reproduce the
paper and as a check.
"""

from typing import Literal, overload

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_concentration, check_count
from mtdinterp.evidence import Evidence, evidence_of

VALUES_AT_ONCE = 1 << 16
"""Likelihoods of steps and lags that chains are run on together, so that they stay in the cache."""
MOST_AT_ONCE = 128
"""Sequences whose chains are run together, at the most: their draws are kept in memory."""


@overload
def gibbs_posterior_mean(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    *,
    concentration: ArrayLike | float = ...,
    samples: int = ...,
    burn_in: int = ...,
    seed: int = ...,
    rao_blackwell: bool = ...,
    return_stderr: Literal[False] = ...,
) -> Tensor: ...
@overload
def gibbs_posterior_mean(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    *,
    concentration: ArrayLike | float = ...,
    samples: int = ...,
    burn_in: int = ...,
    seed: int = ...,
    rao_blackwell: bool = ...,
    return_stderr: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def gibbs_posterior_mean(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    *,
    concentration: ArrayLike | float = 1.0,
    samples: int = 2000,
    burn_in: int = 200,
    seed: int = 0,
    rao_blackwell: bool = False,
    return_stderr: bool = False,
) -> (
    Float64[Tensor, "batch lag"] | tuple[Float64[Tensor, "batch lag"], Float64[Tensor, "batch lag"]]
):
    """Monte-Carlo posterior mean of the weights, with its standard error on request.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.
        concentration: α, one number or one per lag.
        samples: draws that are averaged.
        burn_in: draws that are thrown away first.
        seed: seed of the chain.
        rao_blackwell: average the conditional mean (α_g + count_g)/(α₀ + N) instead of the drawn
            weights: the same expectation with less noise.
        return_stderr: also return the standard error.

    Returns:
        Posterior means of every sequence, with their standard errors if asked for.
    """
    likelihoods = evidence_of(transition, tokens, order).likelihoods
    alpha = as_concentration(concentration, order)
    samples = check_count("samples", samples, minimum=2)
    burn_in = check_count("burn_in", burn_in, minimum=0)
    rng = np.random.Generator(np.random.SFC64(check_count("seed", seed, minimum=0)))
    chain = run_chain(likelihoods.numpy(), alpha.numpy(), burn_in, samples, rao_blackwell, rng)
    mean = torch.from_numpy(chain.mean(0))
    return (mean, torch.from_numpy(chain_stderr(chain))) if return_stderr else mean


def sampled_posterior_mean(
    evidence: Evidence, seed: int = 0, samples: int = 2000, burn_in: int = 200
) -> tuple[Float64[Tensor, "batch component"], Float64[Tensor, "batch component"]]:
    """The Rao-Blackwellised Gibbs estimate under the evidence's own prior.

    Args:
        evidence: the evidence of the sequences.
        seed: seed of the chain.
        samples: draws that are averaged.
        burn_in: draws that are thrown away first.

    Returns:
        Posterior means of every sequence, and their standard errors.
    """
    alpha = as_concentration(evidence.concentration, evidence.n_components).numpy()
    rng = np.random.Generator(np.random.SFC64(seed))
    values_per_sequence = max(1, evidence.n_steps * evidence.n_components)
    at_once = min(MOST_AT_ONCE, max(1, VALUES_AT_ONCE // values_per_sequence))
    means, stderrs = [], []
    for some in evidence.likelihoods.split(at_once):
        chain = run_chain(some.numpy(), alpha, burn_in, samples, True, rng)
        means.append(torch.from_numpy(chain.mean(0)))
        stderrs.append(torch.from_numpy(chain_stderr(chain)))
    return torch.cat(means), torch.cat(stderrs)


def run_chain(
    likelihoods: Float64[np.ndarray, "batch step lag"],
    alpha: Float64[np.ndarray, " lag"],
    burn_in: int,
    samples: int,
    rao_blackwell: bool,
    rng: np.random.Generator,
) -> Float64[np.ndarray, "sample batch lag"]:
    """The chain of drawn weights, or of their conditional means.

    Args:
        likelihoods: c[t, g] of every sequence.
        alpha: the Dirichlet prior.
        burn_in: draws that are thrown away first.
        samples: draws that are kept.
        rao_blackwell: keep the conditional mean given the lag counts instead of the drawn weights.
        rng: random number generator.

    Returns:
        One set of weights per draw and sequence.
    """
    batch_size, steps, order = likelihoods.shape
    # Lag first, so that the cumulative sum over lags is a few additions of whole arrays.
    by_lag = np.ascontiguousarray(np.moveaxis(likelihoods, -1, 0))
    chain = np.empty((samples, batch_size, order))
    weights = np.full((batch_size, order), 1 / order)
    uniform = np.empty((batch_size, steps))
    counts = np.empty((batch_size, order))
    for iteration in range(burn_in + samples):
        reach = np.cumsum(by_lag * weights.T[:, :, None], axis=0)
        rng.random(out=uniform)
        uniform *= reach[-1]
        # reached[g] counts the steps whose lag is at most g+1.
        reached = [np.count_nonzero(uniform < reach[g], axis=1) for g in range(order - 1)] + [steps]
        counts[:, 0] = reached[0]
        for g in range(1, order):
            counts[:, g] = reached[g] - reached[g - 1]
        posterior = alpha + counts
        gamma = rng.standard_gamma(posterior)
        # A count of zero with a tiny α can draw an exact zero, which the chain could never leave.
        weights = np.maximum(gamma / gamma.sum(1, keepdims=True), 1e-300)
        if iteration >= burn_in:
            kept = posterior / (alpha.sum() + steps) if rao_blackwell else weights
            chain[iteration - burn_in] = kept
    return chain


def chain_stderr(
    chain: Float64[np.ndarray, "sample batch lag"],
) -> Float64[np.ndarray, "batch lag"]:
    """Standard error of a chain's mean by Geyer's initial monotone sequence.

    Sums of autocovariances at neighbouring lags 2k, 2k+1 are positive and falling for a reversible
    chain; the sum is cut where noise makes one negative, and never allowed to rise again.
    """
    samples = len(chain)
    centred = chain - chain.mean(0)
    size = 1 << (2 * samples - 1).bit_length()
    spectrum = np.fft.rfft(centred, size, axis=0)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), size, axis=0)[:samples] / samples
    pairs = covariance[: samples - samples % 2].reshape(samples // 2, 2, *chain.shape[1:]).sum(1)
    positive = np.cumprod(pairs > 0, axis=0).astype(bool)
    monotone = np.minimum.accumulate(np.where(positive, pairs, 0), axis=0)
    variance = np.maximum(2 * monotone.sum(0) - covariance[0], 0)
    return np.sqrt(variance / samples)
