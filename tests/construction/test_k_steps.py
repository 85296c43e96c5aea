"""k steps in 2k+1 layers: the formula, the weights, and their tuning."""

import math

import pytest
import torch

from mtdinterp import MTDTask
from mtdinterp.algorithms.k_steps import predict_k_steps
from mtdinterp.algorithms.two_step import TwoStep
from mtdinterp.construction import KStepConstants, k_step, one_step, tune_k_step, two_step
from mtdinterp.estimators import tune_learning_rate
from mtdinterp.estimators.mirror_descent import descend
from mtdinterp.metrics import kl_divergence
from mtdinterp.readings import predictions_of

TASK = MTDTask.random(vocab_size=3, order=3, seed=1)
LENGTH = 48
TOKENS = TASK.sample(64, LENGTH, seed=4).tokens
THREE = KStepConstants((3.0, 5.0), ((6.0,), (2.0, 7.0), (1.0, 2.0, 8.0)))


@pytest.mark.parametrize(
    "constants",
    [
        KStepConstants((), ((7.0,),)),
        KStepConstants((3.0,), ((6.0,), (2.0, 7.0))),
        THREE,
        KStepConstants((3.0, 4.0, -2.0), (*THREE.reads, (1.0, -2.0, 3.0, 4.0))),
    ],
)
def test_the_weights_compute_the_formula(constants):
    model = k_step(TASK.transition, 3, LENGTH, constants, dtype=torch.float64)
    assert model.config.n_layers == 2 * len(constants.reads) + 1
    evidence = TASK.evidence(TOKENS)
    expected = evidence.predict(predict_k_steps(evidence, constants))
    torch.testing.assert_close(predictions_of(model, TOKENS), expected, atol=1e-10, rtol=0)


def test_one_and_two_steps_are_the_known_constructions():
    single = k_step(TASK.transition, 3, LENGTH, KStepConstants((), ((7.0,),)))
    for mine, theirs in zip(
        single.parameters(), one_step(TASK.transition, 3, LENGTH, 7.0).parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
    evidence = TASK.evidence(TOKENS)
    known = TwoStep().weights(
        evidence, beta_first=6.0, sharpness=3.0, beta_mean=2.0, beta_reweighted=7.0
    )
    constants = KStepConstants((3.0,), ((6.0,), (2.0, 7.0)))
    torch.testing.assert_close(predict_k_steps(evidence, constants), known)
    double = two_step(TASK.transition, 3, LENGTH, 6.0, 3.0, 2.0, 7.0)
    mine = k_step(TASK.transition, 3, LENGTH, constants)
    assert torch.equal(predictions_of(mine, TOKENS), predictions_of(double, TOKENS))


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        (KStepConstants((), ()), "rows of 1, 2, 3"),
        (KStepConstants((1.0,), ((1.0,), (1.0,))), r"rows of \[1, 1\]"),
        (KStepConstants((1.0, 2.0), ((1.0,), (1.0, 2.0))), "expected 1 numbers for 2 steps"),
        (KStepConstants((), ((math.nan,),)), "finite"),
    ],
)
def test_constants_that_do_not_fit_each_other_are_refused(constants, words):
    with pytest.raises(ValueError, match=words):
        k_step(TASK.transition, 3, LENGTH, constants)


def test_a_mask_that_the_scores_overcome_is_refused():
    with pytest.raises(ValueError, match="delta: expected at least 90"):
        k_step(TASK.transition, 3, LENGTH, KStepConstants((50.0,), ((1.0,), (1.0, 1.0))), delta=60)


def test_tuned_steps_come_close_to_mirror_descent_and_more_steps_are_no_worse():
    task = MTDTask.random(vocab_size=5, order=3, seed=0)
    data = task.sample(1000, LENGTH, seed=7)
    evidence = task.evidence(data.tokens)
    reached = []
    for steps in (1, 2, 3):
        constants = tune_k_step(task, LENGTH, steps, n_sequences=500)
        assert constants.n_steps == steps
        weights = predict_k_steps(evidence, constants)
        reached.append(kl_divergence(data.next_probs, evidence.predict(weights)).mean().item())
    rate = tune_learning_rate(task, LENGTH, steps=3).learning_rate
    descended = evidence.predict(descend(evidence.likelihoods, rate, 3))
    assert reached[2] <= 1.02 * kl_divergence(data.next_probs, descended).mean().item()
    assert reached[2] <= 1.005 * reached[1] < 1.005 * reached[0]
