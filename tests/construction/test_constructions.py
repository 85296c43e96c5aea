"""Each construction equals its formula, over the whole range of sizes it is meant for."""

import itertools

import pytest
import torch
from torch import Tensor

from mtdinterp import MTDTask
from mtdinterp.construction import one_step, one_step_standard, tune_two_step, two_step
from mtdinterp.estimators import (
    TwoStepConstants,
    learning_rate_from_beta,
    mean_responsibilities,
    mirror_descent,
    predict_next,
    responsibilities,
    reweighted_two_step,
    tune_learning_rate,
)
from mtdinterp.estimators.mirror_descent import BETA, BETA_POINTS
from mtdinterp.estimators.tuning import minimise_on_grid
from mtdinterp.metrics import kl_divergence
from mtdinterp.models.attention import attention_by_offset

TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-5}
ORDERS, VOCABS, BETAS = (2, 3, 4, 5, 6), (2, 5, 26), (1.0, 60.0)


def sparse_transition(vocab_size: int, seed: int) -> Tensor:
    """Rows with zeros and with entries of 1e-12."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(vocab_size, vocab_size, generator=generator, dtype=torch.float64)
    kind = torch.rand(vocab_size, vocab_size, generator=generator)
    rows[kind < 0.3] = 0
    rows[(kind > 0.3) & (kind < 0.5)] = 1e-12
    rows[torch.arange(vocab_size), torch.arange(vocab_size) - 1] = 0.5
    return rows / rows.sum(1, keepdim=True)


def dense_transition(vocab_size: int, seed: int) -> Tensor:
    return MTDTask.random(vocab_size, 2, seed).transition


def last_output(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model(tokens, last_only=True).double()


def one_step_formula(transition: Tensor, tokens: Tensor, order: int, beta: float) -> Tensor:
    rate = learning_rate_from_beta(beta, order, tokens.shape[1])
    return predict_next(transition, tokens, mirror_descent(transition, tokens, order, rate))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("build", [one_step, one_step_standard])
@pytest.mark.parametrize("make_transition", [dense_transition, sparse_transition])
@pytest.mark.parametrize("order", ORDERS)
def test_one_step_equals_one_step_mirror_descent(build, make_transition, order, dtype):
    for vocab_size, beta, length in itertools.product(
        VOCABS, BETAS, (order + 1, order + 2, 40, 130)
    ):
        transition = make_transition(vocab_size, seed=order)
        tokens = MTDTask(transition, order).sample(3, length, seed=length).tokens
        output = last_output(build(transition, order, length, beta, dtype=dtype), tokens)
        error = (output - one_step_formula(transition, tokens, order, beta)).abs().max()
        assert error <= TOLERANCE[dtype], (vocab_size, beta, length)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("make_transition", [dense_transition, sparse_transition])
@pytest.mark.parametrize("order", ORDERS)
def test_two_step_equals_its_formula(make_transition, order, dtype):
    for vocab_size, beta, length in itertools.product(
        VOCABS, BETAS, (order + 1, order + 2, 40, 130)
    ):
        transition = make_transition(vocab_size, seed=order)
        tokens = MTDTask(transition, order).sample(3, length, seed=length).tokens
        constants = TwoStepConstants(0.6 * beta, 1.5 * order, 0.3 * beta, beta)
        output = last_output(two_step(transition, order, length, *constants, dtype=dtype), tokens)
        formula = predict_next(
            transition, tokens, reweighted_two_step(transition, tokens, order, constants)
        )
        assert (output - formula).abs().max() <= TOLERANCE[dtype], (vocab_size, beta, length)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("build", [one_step, one_step_standard])
def test_one_step_holds_at_the_longest_sequences(build, dtype):
    order, length, beta = 4, 1984, 60.0
    transition = dense_transition(5, seed=1)
    tokens = MTDTask(transition, order).sample(2, length, seed=0).tokens
    output = last_output(build(transition, order, length, beta, dtype=dtype), tokens)
    assert (output - one_step_formula(transition, tokens, order, beta)).abs().max() <= TOLERANCE[
        dtype
    ]


def test_two_step_with_no_reweighted_read_is_one_step():
    transition = dense_transition(5, seed=2)
    tokens = MTDTask(transition, 3).sample(5, 30, seed=0).tokens
    constants = (7.0, 3.0, 11.0, 0.0)
    deep = last_output(two_step(transition, 3, 30, *constants, dtype=torch.float64), tokens)
    assert torch.allclose(deep, one_step_formula(transition, tokens, 3, beta=11.0), atol=1e-12)


def test_the_stream_holds_what_the_derivation_says():
    """γ in L1.lag, Γ in L2.L1.lag, w¹ in L3.lag, Γ² in L4.L1.lag, and the attention of layers 1 and
    3."""
    transition, order, length = dense_transition(4, seed=3), 3, 20
    tokens = MTDTask(transition, order).sample(6, length, seed=0).tokens
    constants = TwoStepConstants(9.0, 4.0, 2.0, 8.0)
    model = two_step(transition, order, length, *constants, dtype=torch.float64)
    _, cache = model.run_with_cache(tokens)
    final = cache["resid_post", 4].detach()
    gamma, mean = (
        responsibilities(transition, tokens, order),
        mean_responsibilities(transition, tokens, order),
    )
    first_weights = (9.0 * mean).softmax(-1)
    explained = torch.einsum("btg,bg->bt", gamma, first_weights)
    reweighted = torch.einsum("bt,btg->bg", (-4.0 * explained).softmax(-1), gamma)
    assert torch.allclose(final[:, order:, model.stream["L1.lag"]], gamma, atol=1e-12)
    assert torch.allclose(final[:, -1, model.stream["L2.L1.lag"]], mean, atol=1e-12)
    assert torch.allclose(final[:, -1, model.stream["L3.lag"]], first_weights, atol=1e-12)
    assert torch.allclose(final[:, -1, model.stream["L4.L1.lag"]], reweighted, atol=1e-12)
    by_offset = attention_by_offset(cache["pattern", 0].detach())
    assert torch.allclose(by_offset[:, 0, order:, 1 : order + 1], gamma, atol=1e-12)


def test_the_standard_construction_keeps_its_variables_in_named_dimensions():
    transition, order, length = dense_transition(5, seed=4), 4, 25
    tokens = MTDTask(transition, order).sample(4, length, seed=0).tokens
    model = one_step_standard(transition, order, length, beta=12.0, dtype=torch.float64)
    _, cache = model.run_with_cache(tokens)
    final = cache["resid_post", 2].detach()
    mean = mean_responsibilities(transition, tokens, order)
    assert model.cfg.d_model == 32
    assert model.cfg.d_head == 8
    assert torch.allclose(
        final[:, order:, model.stream["responsibilities"]],
        responsibilities(transition, tokens, order),
        atol=1e-12,
    )
    assert torch.allclose(final[:, -1, model.stream["mean_responsibilities"]], mean, atol=1e-12)


@pytest.mark.parametrize(
    "model",
    [
        one_step(dense_transition(3, 0), 2, 10, 5.0),
        one_step_standard(dense_transition(3, 0), 2, 10, 5.0),
        two_step(dense_transition(3, 0), 2, 10, 5.0, 2.0, 1.0, 4.0),
    ],
    ids=["one_step", "one_step_standard", "two_step"],
)
def test_a_construction_refuses_another_length(model):
    assert model.exact_length
    with pytest.raises(ValueError, match="exact only at length 10, got 9"):
        model(torch.zeros(1, 9, dtype=torch.long))


def test_bad_arguments_are_named():
    transition = dense_transition(5, 0)
    with pytest.raises(ValueError, match="order: expected less than the length 4, got 4"):
        one_step(transition, 4, 4, 5.0)
    with pytest.raises(ValueError, match="beta: expected a finite number, got nan"):
        one_step(transition, 3, 10, float("nan"))
    with pytest.raises(ValueError, match="delta: expected a number > 0, got -1"):
        two_step(transition, 3, 10, 1, 1, 1, 1, delta=-1)
    with pytest.raises(
        ValueError, match="delta: expected at least 340 to mask such scores, got 100"
    ):
        two_step(transition, 3, 10, 1, 300, 1, 1)
    with pytest.raises(
        ValueError, match=r"d_model: expected at least 2·vocab \+ 2·order = 16, got 8"
    ):
        one_step_standard(transition, 3, 10, 5.0, d_model=8)
    with pytest.raises(
        ValueError, match="target: expected one of truth, two_step; got 'two-step'; did you mean"
    ):
        tune_two_step(MTDTask(transition, 3), 16, target="two-step")


def mean_kl(wanted: Tensor, task: MTDTask, tokens: Tensor, weights: Tensor) -> float:
    return kl_divergence(wanted, predict_next(task.transition, tokens, weights)).mean().item()


LONG = [pytest.param(*shape, marks=pytest.mark.slow) for shape in ((4, 64), (3, 256), (4, 256))]


@pytest.mark.parametrize(("order", "length"), [(3, 64), *LONG])
def test_tuned_two_step_matches_two_step_mirror_descent(order, length):
    """Tuned to the truth ≤ 1.02 × two-step MD's KL; tuned to two-step MD ≤ 0.05 × the best one
    step's."""
    task = MTDTask.random(5, order, seed=0)
    held_out = task.sample(5000, length, seed=99)
    problem = (task.transition, held_out.tokens, order)
    rate = tune_learning_rate(task, length, steps=2).learning_rate
    two_steps = mirror_descent(*problem, rate, steps=2)

    to_truth = reweighted_two_step(*problem, tune_two_step(task, length, target="truth"))
    assert mean_kl(held_out.next_probs, task, held_out.tokens, to_truth) <= 1.02 * mean_kl(
        held_out.next_probs, task, held_out.tokens, two_steps
    )

    wanted = predict_next(task.transition, held_out.tokens, two_steps)
    to_two = reweighted_two_step(*problem, tune_two_step(task, length, target="two_step"))

    def one_step_kl(beta: float) -> float:
        weights = mirror_descent(*problem, learning_rate_from_beta(beta, order, length))
        return mean_kl(wanted, task, held_out.tokens, weights)

    _, best_one_step = minimise_on_grid(one_step_kl, BETA.grid(BETA_POINTS), "beta")
    assert mean_kl(wanted, task, held_out.tokens, to_two) <= 0.05 * best_one_step
