"""Rules on windows around the posterior, against rules laid out for the prior and exact sums."""

import math

import numpy as np
import pytest
import torch
from reference_posterior import likelihoods_by_loop, mean_by_counts

from mtdinterp.errors import RuleTooLarge
from mtdinterp.estimators import exact_posterior_mean, gibbs_posterior_mean, posterior_mean
from mtdinterp.estimators.exact_bayes import _PosteriorMean, _windows_are_cheaper
from mtdinterp.estimators.gibbs import run_chain, sampled_posterior_mean
from mtdinterp.estimators.peak import peak_weights
from mtdinterp.estimators.stick_grid import StickGrid, fractions_of, sum_over_grid
from mtdinterp.estimators.window_posterior import WindowPosterior
from mtdinterp.estimators.windowed import windowed_posterior_mean
from mtdinterp.evidence import evidence_of, log_likelihood_at
from mtdinterp.tasks import MTDTask

CONCENTRATIONS = (0.1, 0.5, 1.0, 3.0)
SHARPNESS = (0.05, 0.2, 0.5, 1.0, 3.0)
TOLERANCES = (1e-5, 1e-8, 1e-10)
SIZES = {2: 1984, 3: 1984, 4: 500, 5: 120}
"""By number of lags, the longest sequence for which the reference is quick enough."""


class Problem:
    """Two sequences of a random task; everything follows from the seed."""

    def __init__(self, seed, orders=tuple(SIZES), longest=None):
        chance = np.random.default_rng(seed)
        self.order = int(chance.choice(orders))
        vocab_size = int(chance.integers(2, 9))
        most = longest or SIZES[self.order]
        self.length = max(
            self.order + 2, int(math.exp(chance.uniform(math.log(8), math.log(most))))
        )
        rows = chance.dirichlet([chance.choice(SHARPNESS)] * vocab_size, size=vocab_size)
        rows = np.maximum(rows, 1e-12)
        self.transition = rows / rows.sum(1, keepdims=True)
        self.alpha = tuple(chance.choice(CONCENTRATIONS, size=self.order).tolist())
        if chance.integers(3):
            self.alpha = self.alpha[:1] * self.order
        self.tolerance = float(chance.choice(TOLERANCES))
        # Weights down to a vertex, so that posteriors touch the boundary.
        true = chance.dirichlet([chance.choice([0.05, 1.0, 5.0])] * self.order, size=2)
        true = true / true.sum(1, keepdims=True)
        task = MTDTask(self.transition, self.order)
        self.tokens = task.sample(2, self.length, seed=seed, weights=torch.from_numpy(true)).tokens

    @property
    def evidence(self):
        return evidence_of(self.transition, self.tokens, self.order, self.alpha)

    def windowed(self, tolerance=None, max_nodes=50_000_000):
        likelihoods = self.evidence.likelihoods
        return windowed_posterior_mean(
            likelihoods, self.alpha, tolerance or self.tolerance, max_nodes
        )

    def reference(self):
        """A rule for the prior, to a hundredth of the tolerance."""
        finer = max(self.tolerance / 100, 1e-12)
        return _PosteriorMean(self.evidence.likelihoods, self.alpha).to_tolerance(finer, 8_000_000)


def worst_share_of_the_tolerance(seeds, **settings):
    worst = 0.0
    for seed in seeds:
        problem = Problem(seed, **settings)
        error = (problem.windowed() - problem.reference()).abs().max().item()
        worst = max(worst, error / problem.tolerance)
    return worst


def test_the_tolerance_is_met_on_random_problems():
    assert worst_share_of_the_tolerance(range(120)) < 1


@pytest.mark.slow
def test_the_tolerance_is_met_on_two_thousand_random_problems():
    assert worst_share_of_the_tolerance(range(1000, 3000)) < 1


@pytest.mark.slow
@pytest.mark.parametrize("order", [5, 6])
def test_many_lags_agree_with_finer_windows_and_with_gibbs(order):
    """Where no rule for the prior is affordable: a finer rule on wider windows, and a sampler."""
    for seed in range(20):
        problem = Problem(seed, orders=(order,), longest=1985 if order == 5 else 300)
        means = problem.windowed(1e-5)
        finer = problem.windowed(1e-9, 400_000_000)
        assert (means - finer).abs().max() < 1e-5
        sampled = posterior_mean(
            problem.transition, problem.tokens, order, problem.alpha, method="gibbs", seed=seed
        )
        distance = (finer - sampled.weights).abs()
        assert (distance < 6 * sampled.stderr + 1e-9).all()


@pytest.mark.parametrize("alpha", [(1.0, 1.0, 1.0), (0.1, 0.1, 0.1), (0.3, 2.0, 1.0)])
def test_agrees_with_the_likelihood_polynomial_expanded(alpha):
    problem = Problem(7, orders=(3,), longest=80)
    exact = mean_by_counts(
        likelihoods_by_loop(problem.transition, problem.tokens[0], 3), np.array(alpha)
    )
    likelihoods = problem.evidence.likelihoods[:1]
    means = windowed_posterior_mean(likelihoods, alpha, 1e-11, 10**7)
    assert np.abs(means[0].numpy() - exact).max() < 1e-11


def test_a_posterior_on_a_vertex_and_one_on_an_edge():
    """Under the identity matrix some lags are excluded by the first token that they cannot copy."""
    tokens = [[0, 1, 0, 1] * 50, [0, 0, 1, 1] * 50]
    means = windowed_posterior_mean(
        evidence_of(0.98 * np.eye(2) + 0.01, tokens, 3).likelihoods, (1.0, 1.0, 1.0), 1e-9, 10**7
    )
    exact = exact_posterior_mean(0.98 * np.eye(2) + 0.01, tokens, 3, max_nodes=10**6)
    assert (means - exact).abs().max() < 1e-9
    assert means[0, 1] > 0.95


def test_sequences_do_not_depend_on_their_batch():
    task = MTDTask.random(5, 4, seed=2)
    tokens = task.sample(6, 300, seed=3).tokens
    likelihoods = evidence_of(task.transition, tokens, 4).likelihoods
    together = windowed_posterior_mean(likelihoods, (1.0,) * 4, 1e-9, 10**7)
    for row, mean in zip(likelihoods, together, strict=True):
        alone = windowed_posterior_mean(row[None], (1.0,) * 4, 1e-9, 10**7)
        assert (alone[0] - mean).abs().max() < 1e-9


def test_no_sequences_have_no_means():
    task = MTDTask.random(5, 4, seed=0)
    tokens = torch.zeros(0, 2000, dtype=torch.long)
    assert exact_posterior_mean(task.transition, tokens, 4).shape == (0, 4)
    assert posterior_mean(task.transition, tokens, 4).weights.shape == (0, 4)


@pytest.mark.parametrize("alpha", [1e-3, 1e-6, 1e-8])
def test_a_tiny_concentration_and_lags_without_support(alpha):
    """The posterior is almost on a vertex: weights of other lags are near their prior counts."""
    task = MTDTask.random(5, 3, seed=0)
    weights = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    tokens = task.sample(1, 1000, seed=0, weights=weights).tokens
    likelihoods = task.evidence(tokens).likelihoods
    mean = windowed_posterior_mean(likelihoods, (alpha,) * 3, 1e-9, 10**7)
    assert mean.isfinite().all()
    assert mean[0, 0] > 1 - 10 * alpha
    assert mean.sum() == pytest.approx(1)


def test_the_peak_is_where_no_step_raises_the_density():
    task = MTDTask.random(5, 4, seed=0)
    likelihoods = task.evidence(task.sample(8, 200, seed=0).tokens).likelihoods
    alpha = torch.tensor([0.2, 1.0, 3.0, 0.5], dtype=torch.float64)
    peak = peak_weights(likelihoods, alpha, tolerance=1e-12)

    def density(weights):
        return log_likelihood_at(likelihoods, weights) + weights.log() @ alpha

    chance = torch.Generator().manual_seed(0)
    for _ in range(20):
        step = 0.01 * torch.randn(8, 4, generator=chance, dtype=torch.float64)
        assert (density((peak.log() + step).softmax(-1)) <= density(peak)).all()


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.0])
def test_the_mass_outside_of_a_window_is_bounded(alpha):
    """Narrow windows on purpose: what the bound says is at least what the whole grid finds."""
    task = MTDTask.random(5, 3, seed=0)
    likelihoods = task.evidence(task.sample(6, 256, seed=0).tokens).likelihoods
    rows = np.arange(6)
    narrow = WindowPosterior(likelihoods, (alpha,) * 3, 1e-2)
    grid = narrow.grid(np.full(6, 40), rows)
    sums = narrow.sums(grid, rows)
    wide = WindowPosterior(likelihoods, (alpha,) * 3, 1e-12)
    all_mass = wide.sums(wide.grid(np.full(6, 60), rows), rows).mass
    missing = 1 - sums.mass / all_mass
    bound = narrow.outside(grid, sums, rows).total
    assert (missing > 1e-6).any()
    assert (bound >= 0.9 * missing - 1e-12).all()
    assert (bound < 20 * missing + 1e-9).all()


def test_windows_that_leave_out_too_much_are_widened(monkeypatch):
    """Far too narrow windows to begin with: the bound notices, and the tolerance is met."""
    monkeypatch.setattr("mtdinterp.estimators.window_posterior.MARGIN", -12.0)
    problem = Problem(3, orders=(3,), longest=400)
    assert (problem.windowed(1e-8) - problem.reference()).abs().max() < 1e-8


def random_grid(order, nodes, seed=0):
    chance = np.random.default_rng(seed)
    shape = (2, order - 1, nodes)
    counts = np.full(shape[:2], nodes)
    counts[0, 0] = nodes - 2
    weights = chance.random(shape)
    weights[np.arange(nodes) >= counts[..., None]] = 0.0
    return StickGrid(np.sort(chance.random(shape), 2), weights, counts, counts // 2)


@pytest.mark.parametrize(("order", "steps"), [(2, 5), (3, 130), (4, 64), (5, 1)])
def test_both_implementations_of_the_sums_agree(order, steps, monkeypatch):
    likelihoods = np.random.default_rng(1).random((2, order, steps)) + 0.5
    grid = random_grid(order, 7)
    found = []
    for kernel in ("eager", "fused"):
        monkeypatch.setenv("MTDINTERP_KERNEL", kernel)
        found.append(sum_over_grid(likelihoods, grid, np.zeros(2)))
    eager, fused = found
    for name in ("mass", "mean", "marginals"):
        expected = getattr(eager, name)
        np.testing.assert_allclose(getattr(fused, name), expected, rtol=1e-11, err_msg=name)


def test_long_products_do_not_overflow_or_vanish():
    """5,000 factors of 1e3 and 1e-3 on either side of the peak."""
    likelihoods = np.stack([np.tile([1e3, 1e-3], 2500), np.tile([1e-3, 1e3], 2500)])[None]
    sums = sum_over_grid(likelihoods / 500.0005, random_grid_of_one(), np.zeros(1))
    assert np.isfinite(sums.mass).all()
    assert 0.4 < sums.mean[0, 0] < 0.6


def random_grid_of_one():
    nodes = np.linspace(0.01, 0.99, 33)[None, None]
    return StickGrid(nodes, np.full_like(nodes, 1 / 33), np.array([[33]]), np.array([[16]]))


def test_skipping_parts_of_a_grid_loses_no_more_than_is_allowed():
    task = MTDTask.random(5, 4, seed=1)
    likelihoods = task.evidence(task.sample(4, 300, seed=1).tokens).likelihoods
    posterior = WindowPosterior(likelihoods, (1.0,) * 4, 1e-8)
    rows = np.arange(4)
    grid = posterior.grid(np.full(4, 20), rows)
    whole = sum_over_grid(posterior.scaled, grid, np.zeros(4))
    for share in (1e-3, 1e-6, 1e-9):
        part = sum_over_grid(posterior.scaled, grid, share * whole.mass)
        lost = 1 - part.mass / whole.mass
        assert (lost >= -1e-12).all()
        assert (lost < share).all()
    coarse = sum_over_grid(posterior.scaled, grid, 1e-3 * whole.mass)
    assert ((coarse.marginals == 0) & (whole.marginals > 0)).any(), "nothing was skipped"


def test_fractions_of_weights():
    weights = np.array([[0.2, 0.3, 0.5]])
    np.testing.assert_allclose(fractions_of(weights), [[0.2, 0.375]])


def test_too_few_nodes_is_an_error_that_says_what_to_do():
    task = MTDTask.random(5, 4, seed=0)
    tokens = task.sample(2, 400, seed=0).tokens
    message = (
        "4 components and 396 steps are too many for exact integration: 2 of 2 sequences need at "
        "least 9,261 nodes for tolerance 1e-10, and max_nodes is 1,000; in Python, "
        "mtdinterp.estimators.posterior_mean estimates the posterior mean by sampling"
    )
    with pytest.raises(RuleTooLarge) as caught:
        exact_posterior_mean(task.transition, tokens, 4, max_nodes=1000)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("order", "length", "windows"),
    [(2, 1984, False), (4, 64, False), (3, 1984, True), (4, 512, True), (5, 256, True)],
)
def test_the_cheaper_rule_is_chosen(order, length, windows):
    task = MTDTask.random(5, order, seed=0)
    evidence = task.evidence(task.sample(1, length, seed=0).tokens)
    assert _windows_are_cheaper(evidence, 1e-8) is windows


def test_the_posterior_mean_is_exact_where_that_is_possible():
    task = MTDTask.random(5, 3, seed=0)
    tokens = task.sample(3, 64, seed=0).tokens
    found = posterior_mean(task.transition, tokens, 3, 0.5)
    assert found.method == "exact"
    assert found.stderr is None
    exact = exact_posterior_mean(task.transition, tokens, 3, 0.5)
    assert (found.weights - exact).abs().max() < 1e-8


def test_beyond_that_it_is_sampled_with_a_standard_error():
    task = MTDTask.random(5, 4, seed=0)
    tokens = task.sample(20, 64, seed=0).tokens
    exact = exact_posterior_mean(task.transition, tokens, 4)
    found = posterior_mean(task.transition, tokens, 4, max_nodes=100)
    assert found.method == "gibbs"
    assert ((found.weights - exact).abs() < 5 * found.stderr).all()
    again = posterior_mean(task.transition, tokens, 4, method="gibbs")
    assert again.method == "gibbs"
    assert torch.equal(again.weights, found.weights)
    other = posterior_mean(task.transition, tokens, 4, method="gibbs", seed=1)
    assert not torch.equal(other.weights, found.weights)
    plain = gibbs_posterior_mean(task.transition, tokens, 4, return_stderr=True)[1]
    assert found.stderr.mean() < plain.mean(), "Rao-Blackwell has less noise"


def test_sampled_means_are_those_of_the_papers_chain():
    """200 draws are thrown away, 2,000 are averaged."""
    task = MTDTask.random(5, 4, seed=0)
    evidence = task.evidence(task.sample(3, 32, seed=0).tokens)
    rng = np.random.Generator(np.random.SFC64(7))
    chain = run_chain(evidence.likelihoods.numpy(), np.ones(4), 200, 2000, True, rng)
    means, _ = sampled_posterior_mean(evidence, seed=7)
    assert torch.equal(means, torch.from_numpy(chain.mean(0)))


def test_the_method_can_be_required():
    task = MTDTask.random(5, 4, seed=0)
    tokens = task.sample(2, 64, seed=0).tokens
    with pytest.raises(RuleTooLarge):
        posterior_mean(task.transition, tokens, 4, method="exact", max_nodes=100)
    with pytest.raises(ValueError, match="method: expected one of auto, exact, gibbs"):
        posterior_mean(task.transition, tokens, 4, method="quadrature")
