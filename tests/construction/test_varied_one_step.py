"""Constructions that leak or weigh tokens equal their formulas, computed sum by sum."""

import pytest
import torch

from mtdinterp import MTDTask
from mtdinterp.construction import leaky_lag_mass, leaky_one_step, token_weighted_one_step
from mtdinterp.estimators import predict_next, responsibilities

LENGTH, ORDER, BETA, LEAK = 24, 3, 12.0, 0.2
TASK = MTDTask.random(5, ORDER, seed=1)
TOKENS = TASK.sample(8, LENGTH, seed=0).tokens
OMEGA = torch.tensor([1.3, 1.6, 1.2, 0.8, 0.3], dtype=torch.float64)
ARCHITECTURES = ("disentangled", "standard")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-5}


def leaky_attention(tokens):
    """Layer 1's attention of one sequence, [query, key], position by position."""
    attention = torch.zeros(LENGTH, LENGTH, dtype=torch.float64)
    for query in range(LENGTH):
        for key in range(query + 1):
            weight = 1.0 if 1 <= query - key <= ORDER else LEAK
            attention[query, key] = weight * TASK.transition[tokens[key], tokens[query]]
    return attention / attention.sum(-1, keepdim=True)


def last_output(model, tokens):
    with torch.no_grad():
        return model(tokens, last_only=True).double()


def leaky(lag_mass, **settings):
    return leaky_one_step(TASK.transition, ORDER, LENGTH, BETA, LEAK, lag_mass, **settings)


def test_lag_mass_is_what_is_left_on_the_lags():
    found = leaky_lag_mass(TASK.transition, TOKENS, ORDER, LEAK)
    assert found.shape == (len(TOKENS), LENGTH - ORDER)
    for tokens, masses in zip(TOKENS, found, strict=True):
        attention = leaky_attention(tokens)
        for query in range(ORDER, LENGTH):
            on_lags = attention[query, query - ORDER : query].sum()
            assert masses[query - ORDER] == pytest.approx(on_lags.item(), abs=1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_leaky_model_equals_its_formula(architecture, dtype):
    mass = leaky_lag_mass(TASK.transition, TOKENS, ORDER, LEAK).mean(0)
    model = leaky(mass, architecture=architecture, dtype=dtype)
    assert 0.2 < mass[-1] < mass[0] < 0.95  # the leak grows with the position
    second = (1 / mass) / (1 / mass).sum()
    size = 1 / (1 / mass).mean()
    averages = torch.zeros(len(TOKENS), ORDER, dtype=torch.float64)
    for number, tokens in enumerate(TOKENS):
        attention = leaky_attention(tokens)
        for query in range(ORDER, LENGTH):
            for lag in range(1, ORDER + 1):
                share = second[query - ORDER] * attention[query, query - lag]
                averages[number, lag - 1] += share
    weights = (BETA / size * averages).softmax(-1)
    expected = predict_next(TASK.transition, TOKENS, weights)
    assert (last_output(model, TOKENS) - expected).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hardly_any_leak_is_one_step(architecture):
    mass = torch.ones(LENGTH - ORDER)
    model = leaky_one_step(
        TASK.transition, ORDER, LENGTH, BETA, 1e-12, mass, architecture, dtype=torch.float64
    )
    gamma = responsibilities(TASK.transition, TOKENS, ORDER)
    expected = predict_next(TASK.transition, TOKENS, (BETA * gamma.mean(1)).softmax(-1))
    assert (last_output(model, TOKENS) - expected).abs().max() <= 1e-8


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_token_weighted_model_equals_its_formula(architecture, dtype):
    model = token_weighted_one_step(
        TASK.transition, ORDER, LENGTH, BETA, OMEGA, architecture, dtype=dtype
    )
    gamma = responsibilities(TASK.transition, TOKENS, ORDER)
    shares = OMEGA[TOKENS[:, ORDER:]]
    shares = shares / shares.sum(-1, keepdim=True)
    average = (shares[..., None] * gamma).sum(1)
    expected = predict_next(TASK.transition, TOKENS, (BETA * average).softmax(-1))
    assert (last_output(model, TOKENS) - expected).abs().max() <= TOLERANCE[dtype]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="lag_mass: expected one value for each of the 21 posit"):
        leaky(torch.ones(LENGTH))
    with pytest.raises(ValueError, match="lag_mass: expected values above 0 and at most 1"):
        leaky(torch.zeros(LENGTH - ORDER))
    with pytest.raises(ValueError, match="leak: expected a number > 0, got 0"):
        leaky_one_step(TASK.transition, ORDER, LENGTH, BETA, 0, torch.ones(LENGTH - ORDER))
    with pytest.raises(ValueError, match="token_weights: expected one value for each of the 5 tok"):
        token_weighted_one_step(TASK.transition, ORDER, LENGTH, BETA, [1.0, 1.0])
    with pytest.raises(ValueError, match="token_weights: expected values above 0"):
        token_weighted_one_step(TASK.transition, ORDER, LENGTH, BETA, [1.0, 1.0, 1.0, 1.0, 0.0])
    with pytest.raises(ValueError, match="architecture: expected one of disentangled, standard"):
        leaky(torch.ones(LENGTH - ORDER), architecture="narrow")
