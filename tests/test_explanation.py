"""Explanations: known models are named with their constants, and all others honestly."""

import pytest
import torch

from mtdinterp import LagSpecificMTDTask, MTDTask, explain
from mtdinterp.algorithms.base import Algorithm, Variable
from mtdinterp.algorithms.one_step import RESPONSIBILITIES
from mtdinterp.construction import LayerRole, one_step, one_step_standard, two_step
from mtdinterp.construction.base import Implementation, implementation_for, implementations_for
from mtdinterp.errors import CannotCompute, NotApplicable
from mtdinterp.estimators import tune_learning_rate
from mtdinterp.estimators.mirror_descent import BETA
from mtdinterp.explanation import nearest_algorithm
from mtdinterp.formatting import counted
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
)
from mtdinterp.plugins import register_algorithm, register_implementation
from mtdinterp.readings import attention_of, predictions_of
from mtdinterp.registry import ALGORITHMS, ESTIMATORS, IMPLEMENTATIONS
from mtdinterp.tasks import HasTransition

LENGTH = 40
FEW = 128


def untrained(n_layers, vocab_size=5, length=LENGTH):
    """A model with small random weights, which has learned nothing."""
    config = DisentangledConfig(
        vocab_size=vocab_size, length=length, n_layers=n_layers, d_rel=3, exact_length=False
    )
    model = DisentangledTransformer(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    return model


@pytest.mark.parametrize("order", [2, 3, 5])
@pytest.mark.parametrize("beta", [4.0, 17.0, 60.0])
@pytest.mark.parametrize("build", [one_step, one_step_standard])
def test_a_one_step_construction_is_named_with_its_beta(build, beta, order):
    task = MTDTask.random(5, order, seed=1)
    model = build(task.transition, order, LENGTH, beta)
    explanation = explain(model, task, n_sequences=FEW)
    assert explanation.algorithm is ALGORITHMS["one_step"]
    assert explanation.implementation is IMPLEMENTATIONS[f"one_step/{model.config.architecture}"]
    assert explanation.no_implementation == ""
    assert explanation.constants["beta"] == pytest.approx(beta, rel=1e-3)
    assert explanation.stderrs["beta"] < 1e-2 * beta
    assert explanation.explained > 0.9999
    assert explanation.fitted
    assert explanation.identified
    assert explanation.at_bound == ()
    assert explanation.roles == (LayerRole.LAGS, LayerRole.AVERAGE, LayerRole.WEIGHTS)
    assert f"β = {beta:.2g}" in explanation.describe_constants()
    assert "one step of mirror descent" in explanation.summary()


@pytest.mark.parametrize("order", [3, 4])
def test_a_two_step_construction_is_named_with_its_constants(order):
    task = MTDTask.random(5, order, seed=2)
    constants = {"beta_first": 12.0, "sharpness": 4.0, "beta_mean": 6.0, "beta_reweighted": 15.0}
    model = two_step(task.transition, order, LENGTH, **constants, dtype=torch.float64)
    explanation = explain(model, task, n_sequences=512)
    assert explanation.algorithm is ALGORITHMS["two_step_construction"]
    assert explanation.implementation is IMPLEMENTATIONS["two_step_construction/disentangled"]
    assert explanation.explained > 0.9999
    assert explanation.fitted
    for name, value in constants.items():
        assert explanation.constants[name] == pytest.approx(value, rel=0.05), name
    assert [role.reads_next_lags for role in explanation.roles] == [False, False, True, False, True]


@pytest.mark.parametrize("build", [one_step, one_step_standard])
def test_the_reference_reproduces_a_one_step_construction(build):
    task = MTDTask.random(5, 3, seed=3)
    model = build(task.transition, 3, LENGTH, 14.0)
    explanation = explain(model, task, n_sequences=FEW)
    compare_with_reference(model, task, explanation)
    stronger = explanation.reference({"beta": 50.0})
    tokens = explanation.tokens
    other = build(task.transition, 3, LENGTH, 50.0)
    error = (predictions_of(stronger, tokens) - predictions_of(other, tokens)).abs().max()
    assert error < 1e-6


def test_the_reference_reproduces_a_two_step_construction():
    task = MTDTask.random(5, 3, seed=3)
    model = two_step(task.transition, 3, LENGTH, 12.0, 4.0, 6.0, 15.0)
    explanation = explain(model, task, n_sequences=256)
    assert explanation.reference().config.n_layers == 5
    reference = explanation.reference()
    tokens = task.sample(50, LENGTH, seed=9).tokens
    error = (predictions_of(model, tokens) - predictions_of(reference, tokens)).abs().max()
    assert error < 1e-3


def compare_with_reference(model, task, explanation):
    """Outputs and attention that counts agree with those of the reference construction."""
    reference = explanation.reference()
    assert type(reference) is type(model)
    tokens = task.sample(50, LENGTH, seed=9).tokens
    error = (predictions_of(model, tokens) - predictions_of(reference, tokens)).abs().max()
    assert error < 1e-4
    layers = range(model.config.n_layers)
    first = attention_of(model, tokens, patterns=layers, last_only=False).patterns
    second = attention_of(reference, tokens, patterns=layers, last_only=False).patterns
    for layer, role in enumerate(explanation.roles):
        queries = slice(task.warm_up, None) if role.counts_everywhere else slice(-1, None)
        difference = first[layer][:, :, queries] - second[layer][:, :, queries]
        assert difference.abs().max() < 1e-4, layer


@pytest.mark.parametrize("n_layers", [1, 2, 4])
def test_a_depth_without_a_construction_says_so(n_layers):
    task = MTDTask.random(5, 3, seed=1)
    explanation = explain(untrained(n_layers), task, n_sequences=32)
    assert explanation.implementation is None
    assert explanation.roles is None
    assert explanation.reference() is None
    depth = counted(n_layers, "layer")
    assert explanation.no_implementation == (
        f"No construction is known for {depth} of the disentangled architecture; "
        "there are constructions of 3 and 5 layers."
    )
    assert explanation.summary().endswith(explanation.no_implementation)


def test_an_architecture_knows_its_own_depths_only():
    task = MTDTask.random(5, 3, seed=1)
    model = StandardTransformer(StandardConfig(vocab_size=5, length=LENGTH, n_layers=5))
    with pytest.raises(NotApplicable, match=r"standard architecture; there are .* of 3 layers\.$"):
        implementation_for(model.config, task)


def test_a_task_without_a_single_matrix_has_no_construction():
    task = LagSpecificMTDTask.random(5, 3, seed=1)
    explanation = explain(untrained(3), task, n_sequences=32)
    assert explanation.implementation is None
    assert explanation.reference() is None
    assert explanation.no_implementation == (
        "The construction needs one transition matrix that all lags share; "
        "the task 'lag-specific' has none."
    )


def test_a_model_without_a_construction_is_explained_by_the_nearest_algorithm(monkeypatch):
    """The model is a construction, but nobody is told."""
    task = MTDTask.random(5, 3, seed=1)
    model = one_step(task.transition, 3, LENGTH, 20.0)
    monkeypatch.setattr(IMPLEMENTATIONS, "_items", {})
    explanation = explain(model, task, n_sequences=FEW)
    assert explanation.implementation is None
    assert explanation.no_implementation == (
        "No construction is known for 3 layers of the disentangled architecture."
    )
    assert explanation.algorithm.name == "one_step"
    assert explanation.constants["beta"] == pytest.approx(20.0, rel=1e-3)
    assert explanation.fitted


def test_a_second_construction_of_a_depth_serves_the_tasks_that_the_first_refuses(monkeypatch):
    class ForLags(Implementation):
        algorithm, architecture = "one_step", "disentangled"
        roles = IMPLEMENTATIONS["one_step/disentangled"].roles

        def check_task(self, task):
            if isinstance(task, HasTransition):
                raise NotApplicable("One matrix is enough.")

        def construct(self, task, length, constants, delta=None, dtype=torch.float32):
            raise NotImplementedError

    second = ForLags()
    monkeypatch.setattr(IMPLEMENTATIONS, "_items", {**IMPLEMENTATIONS, "second": second})
    config = untrained(3).config
    assert implementation_for(config, LagSpecificMTDTask.random(5, 3, seed=0)) is second
    first = implementation_for(config, MTDTask.random(5, 3, seed=0))
    assert first is IMPLEMENTATIONS["one_step/disentangled"]


def test_of_several_constructions_of_a_depth_the_nearest_algorithm_is_chosen(monkeypatch):
    class Newest(Algorithm):
        name, label, rank = "newest", "one step on the last token alone", -1.0
        constants = (BETA,)
        variables = (RESPONSIBILITIES, Variable("weights", "w", newest_weights))

        def default_constants(self, evidence):
            return {"beta": 1.0}

    class Failing(Newest):
        name = "failing"

        def weights(self, evidence, **constants):
            raise CannotCompute("it never works")

    for kind in (ALGORITHMS, ESTIMATORS, IMPLEMENTATIONS):
        len(kind)
        monkeypatch.setattr(kind, "_items", dict(kind._items))
    for algorithm in (Newest, Failing):
        register_algorithm(algorithm)
        implementation = type(IMPLEMENTATIONS["one_step/disentangled"])()
        implementation.algorithm = algorithm.name
        register_implementation(implementation)
    task = MTDTask.random(5, 3, seed=1)
    model = one_step(task.transition, 3, LENGTH, 20.0)
    names = [entry.algorithm for entry in implementations_for(model.config, task)]
    assert names == ["newest", "failing", "one_step"]
    explanation = explain(model, task, n_sequences=FEW)
    assert explanation.implementation is IMPLEMENTATIONS["one_step/disentangled"]
    with pytest.raises(CannotCompute, match="no algorithm can be computed here: it never works"):
        nearest_algorithm(task.evidence(explanation.tokens), explanation.predictions, ["failing"])


def newest_weights(evidence, values, constants):
    return (constants["beta"] * values["responsibilities"][:, -1]).softmax(-1)


@pytest.mark.parametrize("n_layers", [3, 5])
def test_an_untrained_model_has_no_constants_of_its_own(n_layers):
    task = MTDTask.random(5, 3, seed=1)
    explanation = explain(untrained(n_layers), task, n_sequences=64)
    assert not explanation.fitted
    assert not explanation.identified
    assert explanation.explained < 0.5
    assert explanation.source == "tuned to the truth, because the model does not determine them"
    assert explanation.reference() is not None
    if n_layers == 3:
        assert explanation.constants["beta"] == tune_learning_rate(task, LENGTH).beta
    assert "±" not in explanation.describe_constants()


@pytest.mark.parametrize("n_layers", [3, 5])
@pytest.mark.parametrize(
    "task", [MTDTask.random(5, 1, seed=0), MTDTask([[0.2] * 5] * 5, 3)], ids=["one-lag", "equal"]
)
def test_a_task_with_nothing_to_tune_has_a_reference_with_default_constants(n_layers, task):
    explanation = explain(untrained(n_layers), task, n_sequences=32)
    assert not explanation.fitted
    assert explanation.source.startswith("a default, because ")
    assert explanation.source.endswith("there is nothing to tune")
    evidence = task.evidence(explanation.tokens)
    assert explanation.constants == explanation.algorithm.default_constants(evidence)
    assert explanation.reference().config.n_layers == n_layers


def test_the_same_arguments_give_the_same_explanation():
    task = MTDTask.random(5, 3, seed=1)
    model = one_step(task.transition, 3, LENGTH, 20.0)
    with torch.no_grad():
        model.W_U.add_(0.01 * torch.randn(model.W_U.shape, generator=torch.Generator()))
    torch.manual_seed(1)
    first = explain(model, task, n_sequences=64)
    torch.manual_seed(2)
    second = explain(model, task, n_sequences=64)
    assert first.constants == second.constants
    assert first.stderrs == second.stderrs
    assert first.summary() == second.summary()
    assert explain(model, task, n_sequences=64, seed=1).constants != first.constants
    given = explain(model, task, first.tokens)
    assert given.constants == first.constants
    assert given.seed is None


def test_a_model_of_another_vocabulary_is_refused():
    task = MTDTask.random(4, 3, seed=1)
    with pytest.raises(
        ValueError, match="task: expected a vocabulary of 5 tokens, like the model, got 4"
    ):
        explain(untrained(3), task, n_sequences=32)
