"""Readings of models whose answer is known: the constructions."""

import math

import pytest
import torch

from mtdinterp.construction import one_step, one_step_standard
from mtdinterp.construction.one_step_disentangled import weight_beta
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.readings import (
    attention_of,
    centred,
    fit_slope,
    gauge_fixed,
    mean_over_heads,
    read,
    token_scores,
)
from mtdinterp.readings.mechanism import averaged_lags
from mtdinterp.tasks import MTDTask

LENGTH = 40


@pytest.mark.parametrize("order", [2, 3, 5])
@pytest.mark.parametrize("beta", [1.0, 17.0, 60.0])
@pytest.mark.parametrize("build", [one_step, one_step_standard])
def test_the_construction_is_read_exactly(build, beta, order):
    task = MTDTask.random(5, order, seed=1)
    tokens = task.sample(64, LENGTH, seed=2).tokens
    model = build(task.transition, order, LENGTH, beta, dtype=torch.float64)
    reading = read(model, task, tokens)
    assert reading.beta.value == pytest.approx(beta, rel=1e-6)
    assert reading.beta.r2 == pytest.approx(1, abs=1e-9)
    assert reading.gain.value == pytest.approx(1, abs=1e-6)
    assert reading.branch == "direct"
    assert abs(reading.transition_kl) < 1e-9
    if build is one_step:
        assert weight_beta(model, order).value == pytest.approx(beta, rel=1e-6)
    else:
        assert math.isnan(weight_beta(model, order).value)


def test_mirrored_attention_has_a_negative_gain():
    task = MTDTask.random(5, 3, seed=1)
    tokens = task.sample(64, LENGTH, seed=2).tokens
    model = one_step(task.transition, 3, LENGTH, 10.0)
    with torch.no_grad():
        model.blocks[0].attn.W_A *= -0.3
    assert read(model, task, tokens).branch == "mirrored"


def test_readings_follow_their_definitions_and_leave_no_hooks():
    torch.manual_seed(0)
    model = DisentangledTransformer(
        DisentangledConfig(vocab_size=3, length=9, d_rel=2, n_heads=(2, 1, 1))
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    tokens = torch.randint(3, (4, 9))
    seen = attention_of(model, tokens, patterns=range(3), log_at_last=[2])
    first, second, third = seen.patterns.values()
    paths = averaged_lags(first, second, [0, 1])
    expected = torch.zeros(4, 2, 1, 2, dtype=torch.float64)
    for head in range(2):
        for g in (1, 2):
            for i in range(g, 9):
                averaged = second[:, 0, -1, i].double() * first[:, head, i, i - g].double()
                expected[:, head, 0, g - 1] += averaged
    assert torch.allclose(paths, expected, atol=1e-7)
    logs = seen.log_at_last[2]
    assert logs.shape == (4, 1, 9)
    assert torch.allclose(logs[:, 0, 3], third[:, 0, -1, 5].double().log(), atol=1e-5)
    assert torch.allclose(mean_over_heads(logs), logs[:, 0], atol=1e-12)
    two = attention_of(model, tokens, patterns=[0], log_at_last=[0], last_only=False)
    mean = two.patterns[0][:, :, -1].double().mean(1).log().flip(-1)
    assert torch.allclose(mean_over_heads(two.log_at_last[0]), mean, atol=1e-5)
    assert not any(hook.fwd_hooks for hook in model.hook_points())


def test_the_gauge_does_not_matter():
    """A constant for every query token changes neither attention nor the matrix that is read from
    it."""
    task = MTDTask.random(6, 3, seed=4)
    scores = task.transition.log().T
    constants = torch.linspace(-300, 300, 6, dtype=torch.float64)[:, None]
    for sign in (1, -1):
        read_out = gauge_fixed(sign * scores + constants, task.stationary, sign)
        assert torch.allclose(read_out, task.transition, atol=1e-12)


@pytest.mark.parametrize("build", [one_step, one_step_standard])
def test_token_scores_are_the_logarithm_of_the_transition_matrix(build):
    task = MTDTask.random(5, 3, seed=1)
    model = build(task.transition, 3, LENGTH, 10.0, dtype=torch.float64)
    assert torch.allclose(token_scores(model)[0], task.transition.log().T, atol=1e-12)


def test_slope_against_a_line_with_known_noise():
    generator = torch.Generator().manual_seed(0)
    x, noise = (
        centred(torch.randn(4000, 2, generator=generator, dtype=torch.float64)) for _ in range(2)
    )
    y = 3 * x + 0.5 * noise
    slope = fit_slope(x, y)
    assert abs(slope.value - 3) < 4 * slope.stderr
    assert slope.stderr == pytest.approx(0.5 / 4000**0.5, rel=0.1)  # one degree of freedom a row
    assert slope.r2 == pytest.approx(9 / 9.25, abs=0.01)
    assert fit_slope(torch.zeros(3, 2), torch.ones(3, 2)).r2 == 0
