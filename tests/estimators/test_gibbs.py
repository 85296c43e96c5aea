"""The Gibbs sampler: its mean, its noise, and what it says about its noise."""

import numpy as np
import pytest
import torch

from mtdinterp.estimators import exact_posterior_mean, gibbs_posterior_mean
from mtdinterp.estimators.gibbs import run_chain
from mtdinterp.tasks import MTDTask

CHAINS = 50


def chains(order, concentration, rao_blackwell):
    """Fifty chains on one sequence, run as one batch: (means, standard errors, exact mean)."""
    task = MTDTask.random(5, order, seed=3, concentration=concentration)
    tokens = task.sample(1, 48, seed=4).tokens
    mean, stderr = gibbs_posterior_mean(
        task.transition,
        tokens.repeat(CHAINS, 1),
        order,
        seed=5,
        concentration=concentration,
        rao_blackwell=rao_blackwell,
        return_stderr=True,
    )
    return mean, stderr, exact_posterior_mean(task.transition, tokens, order, concentration)[0]


@pytest.mark.parametrize("rao_blackwell", [False, True])
@pytest.mark.parametrize(("order", "concentration"), [(3, 1.0), (4, (0.5, 1.0, 2.0, 1.0))])
def test_stated_error_is_the_spread_between_chains(order, concentration, rao_blackwell):
    mean, stderr, exact = chains(order, concentration, rao_blackwell)
    ratio = stderr.mean(0) / mean.std(0)
    assert ((ratio > 0.5) & (ratio < 2)).all()
    standard_error_of_the_average = mean.std(0) / CHAINS**0.5
    assert ((mean.mean(0) - exact).abs() < 4 * standard_error_of_the_average).all()


def test_rao_blackwell_averages_are_less_noisy():
    plain, _, _ = chains(3, 1.0, rao_blackwell=False)
    blackwell, _, _ = chains(3, 1.0, rao_blackwell=True)
    assert (blackwell.std(0) < plain.std(0)).all()


def test_same_seed_same_chain_and_another_seed_another_chain():
    task = MTDTask.random(4, 3, seed=0)
    arguments = task.transition, task.sample(2, 20, seed=1).tokens, 3
    first = gibbs_posterior_mean(*arguments, samples=20, seed=7)
    assert torch.equal(first, gibbs_posterior_mean(*arguments, samples=20, seed=7))
    assert not torch.equal(first, gibbs_posterior_mean(*arguments, samples=20, seed=8))


def test_rao_blackwell_mean_of_identical_rows_is_the_prior_mean():
    """Nothing is learned from rows that are all alike: counts are multinomial under the prior."""
    alpha = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    mean, stderr = gibbs_posterior_mean(
        torch.full((3, 3), 1 / 3),
        [[0, 1, 2, 1, 0, 2, 2, 1]],
        3,
        concentration=alpha,
        rao_blackwell=True,
        return_stderr=True,
    )
    assert ((mean - alpha / alpha.sum()).abs() < 4 * stderr).all()


def test_no_draw_is_exactly_zero_however_small_the_concentration():
    """A lag of weight zero would never be drawn again."""
    chain = run_chain(
        likelihoods=np.ones((2, 3, 2)),
        alpha=np.full(2, 1e-9),
        burn_in=0,
        samples=20,
        rao_blackwell=False,
        rng=np.random.default_rng(0),
    )
    assert (chain > 0).all()
    assert (chain.min(-1) < 1e-200).any()
