"""Constants of estimators: the default fit finds known ones, marks bounds, and tunes to a task."""

import pytest
import torch

from mtdinterp.checks import check_number
from mtdinterp.errors import CannotCompute, NothingToTune
from mtdinterp.estimators import (
    Constant,
    Estimator,
    Fit,
    exact_posterior_mean,
    tune_learning_rate,
)
from mtdinterp.estimators.optimum import Interval
from mtdinterp.metrics import kl_divergence
from mtdinterp.plugins import register_estimator
from mtdinterp.registry import ALGORITHMS, ESTIMATORS
from mtdinterp.style import style_of
from mtdinterp.tasks import MTDTask

TASK = MTDTask.random(5, 3, seed=2)
LENGTH = 40


@pytest.fixture(scope="module")
def evidence():
    return TASK.evidence(TASK.sample(400, LENGTH, seed=3).tokens)


class Sharpened(Estimator):
    """Softmax of Γ with one gain, and a prior in favour of recent lags."""

    name, label = "sharpened", "a softmax with a preference for recent lags"
    constants = (
        Constant("gain", "k", 0.1, 1000),
        Constant("recency", "r", -4.0, 5.0, log=False),
    )

    def weights(self, evidence, **constants):
        lags = torch.arange(evidence.n_components)
        scores = constants["gain"] * evidence.mean_responsibilities
        return (scores - constants["recency"] * lags).softmax(-1)


class Shrunk(Estimator):
    """Γ on a scale of one constant that need not be logarithmic."""

    name, label = "shrunk", "mean responsibilities, shrunk to uniform"
    constants = (Constant("share", "a", 0.01, 1.0, log=False),)

    def weights(self, evidence, **constants):
        share = constants["share"]
        return share * evidence.mean_responsibilities + (1 - share) * evidence.uniform


@pytest.mark.parametrize("name", ["one_step", "mirror_descent_2", "mirror_descent_5"])
@pytest.mark.parametrize("beta", [1.0, 14.0, 90.0])
def test_one_known_constant_is_found(evidence, name, beta):
    estimator = ESTIMATORS[name]
    fit = estimator.fit(evidence, estimator.predict(evidence, beta=beta))
    assert fit.constants["beta"] == pytest.approx(beta, rel=2 * estimator.tolerance)
    assert fit.divergence < 1e-6
    assert fit.at_bound == ()
    rate = fit.constants["beta"] / (3 * (LENGTH - 3))
    assert estimator.derived(evidence, fit.constants)["learning_rate"] == pytest.approx(rate)


def test_one_constant_on_a_linear_scale_is_found(evidence):
    fit = Shrunk().fit(evidence, Shrunk().predict(evidence, share=0.37))
    assert fit.constants["share"] == pytest.approx(0.37, rel=2e-3)


@pytest.mark.parametrize("gain", [5.0, 40.0])
@pytest.mark.parametrize("recency", [-1.5, 0.3])
def test_several_known_constants_are_found(evidence, gain, recency):
    fit = Sharpened().fit(evidence, Sharpened().predict(evidence, gain=gain, recency=recency))
    assert fit.constants["gain"] == pytest.approx(gain, rel=1e-2)
    assert fit.constants["recency"] == pytest.approx(recency, abs=1e-2)
    assert fit.divergence < 1e-6
    assert fit.at_bound == ()


def test_an_estimator_without_constants_has_a_divergence_alone(evidence):
    estimator = ESTIMATORS["uniform"]
    predictions = ESTIMATORS["one_step"].predict(evidence, beta=10.0)
    fit = estimator.fit(evidence, predictions)
    expected = kl_divergence(predictions, evidence.predict(evidence.uniform)).mean().item()
    assert fit.constants == {}
    assert fit.divergence == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("beta", [-30.0, -2.0])
def test_a_signed_constant_may_be_negative(evidence, beta):
    one_step = ESTIMATORS["one_step"]
    fit = one_step.fit(evidence, one_step.predict(evidence, beta=beta))
    assert fit.constants["beta"] == pytest.approx(beta, rel=2e-4)


def test_a_signed_constant_is_zero_for_uniform_weights(evidence):
    fit = ESTIMATORS["one_step"].fit(evidence, evidence.predict(evidence.uniform))
    assert fit.constants == {"beta": 0.0}
    assert fit.divergence == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_constant_beyond_its_range_ends_on_the_bound_and_is_marked(evidence, sign):
    """The prediction of the best (or worst) lag alone is the limit of an infinite β."""
    best = (sign * evidence.mean_responsibilities).argmax(-1)
    corner = torch.nn.functional.one_hot(best, 3).double()
    fit = ESTIMATORS["one_step"].fit(evidence, evidence.predict(corner))
    assert fit.constants["beta"] == sign * 2000
    assert fit.at_bound == ("beta",)


def test_an_unsigned_constant_ends_on_its_lower_bound_and_is_marked(evidence):
    fit = ESTIMATORS["mirror_descent_2"].fit(evidence, evidence.predict(evidence.uniform))
    assert fit.constants["beta"] == pytest.approx(0.1)
    assert fit.at_bound == ("beta",)


@pytest.mark.parametrize(("beyond", "bound"), [(9.0, 5.0), (-9.0, -4.0)])
def test_one_of_several_constants_on_its_bound_is_marked(evidence, beyond, bound):
    predictions = Sharpened().predict(evidence, gain=20.0, recency=beyond)
    fit = Sharpened().fit(evidence, predictions)
    assert fit.constants["recency"] == bound
    assert "recency" in fit.at_bound


@pytest.mark.parametrize(
    ("fit", "text"),
    [
        (Fit({"beta": 16.127}, 0.1), "β = 16.13"),
        (Fit({"beta": 2000.0}, 0.1, ("beta",)), "β = 2000 (at the bound of its range)"),
        (Fit({"beta": 2000.0}, 0.1, ("other",)), "β = 2000"),
        (
            Fit({"beta": 16.13}, 0.1, intervals={"beta": Interval(15.92, 16.35)}),
            "β = 16.13 (15.92 to 16.35)",
        ),
        (
            Fit({"beta": 16.13}, 0.1, intervals={"beta": Interval(2.13, None)}, flat=("beta",)),
            "β = 16.1, flat: every β ≥ 2.1 fits equally well",
        ),
    ],
)
def test_the_text_of_a_constant_says_what_is_known_of_it(fit, text):
    assert fit.constant_text(Constant("beta", "β", 0.1, 2000)) == text


def test_tuning_to_the_truth_agrees_with_the_tuned_learning_rate():
    tuned = ESTIMATORS["one_step"].tune(TASK, LENGTH, seed=4, n_sequences=500)
    rate = tune_learning_rate(TASK, LENGTH, seed=4, n_sequences=500)
    assert tuned.constants["beta"] == pytest.approx(rate.beta, rel=1e-3)
    assert tuned.divergence == pytest.approx(rate.kl, rel=1e-3)


def test_tuning_draws_5000_sequences_by_default():
    task = MTDTask.random(3, 2, seed=0)
    uniform = ESTIMATORS["uniform"]
    assert uniform.tune(task, 6) == uniform.tune(task, 6, n_sequences=5000)
    assert uniform.tune(task, 6) != uniform.tune(task, 6, n_sequences=4999)


def test_tuning_to_the_posterior_mean_minimises_the_divergence_from_it():
    tuned = ESTIMATORS["one_step"].tune(
        TASK, LENGTH, target="posterior_mean", seed=4, n_sequences=200
    )
    data = TASK.sample(200, LENGTH, seed=4)
    evidence = TASK.evidence(data.tokens)
    mean = exact_posterior_mean(TASK.transition, data.tokens, 3)

    def divergence(beta: float) -> float:
        weights = ESTIMATORS["one_step"].weights(evidence, beta=beta)
        return kl_divergence(evidence.predict(mean), evidence.predict(weights)).mean().item()

    best = divergence(tuned.constants["beta"])
    assert tuned.divergence == pytest.approx(best, rel=1e-2)
    assert best < divergence(0.9 * tuned.constants["beta"])
    assert best < divergence(1.1 * tuned.constants["beta"])


@pytest.mark.parametrize("name", list(ALGORITHMS))
@pytest.mark.parametrize(
    "task", [MTDTask.random(4, 1, seed=0), MTDTask([[0.25] * 4] * 4, 3)], ids=["one-lag", "equal"]
)
def test_nothing_is_tuned_if_no_prediction_depends_on_the_weights(name, task):
    with pytest.raises(NothingToTune, match="nothing to tune"):
        ALGORITHMS[name].tune(task, 20, n_sequences=20)


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(ValueError, match="target: expected one of truth, posterior_mean; got 'x'"):
        ESTIMATORS["one_step"].tune(TASK, LENGTH, target="x", n_sequences=20)


def test_a_new_estimator_of_a_few_lines_has_everything(evidence):
    """A class with a name, a label, constants and weights is registered, drawn and fitted."""
    register_estimator(Sharpened)
    try:
        estimator = ESTIMATORS["sharpened"]
        assert list(ESTIMATORS)[-1] == "sharpened"
        assert estimator.label == "a softmax with a preference for recent lags"
        assert style_of(estimator.name).colour.startswith("#")
        predictions = estimator.predict(evidence, gain=12.0, recency=0.5)
        assert estimator.fit(evidence, predictions).divergence < 1e-6
    finally:
        ESTIMATORS.remove("sharpened")
    assert "sharpened" not in ESTIMATORS


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_every_registered_estimator_is_complete(name, evidence):
    estimator = ESTIMATORS[name]
    some = evidence[:20]
    constants = {}
    for constant in estimator.constants_for(some):
        assert constant.low < constant.high
        middle = constant.grid(3)[1]
        constants[constant.name] = check_number(constant.name, float(middle))
    try:
        weights = estimator.weights(some, **constants)
    except CannotCompute as error:
        pytest.skip(str(error))
    assert weights.shape == (20, 3)
    assert (weights >= 0).all()
    assert (weights.sum(-1) - 1).abs().max() < 1e-9
    assert torch.equal(estimator.predict(some, **constants), some.predict(weights))
    assert not estimator.label[0].isupper()
    assert style_of(name).colour.startswith("#")
