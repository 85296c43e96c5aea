"""What does not change the model's function must not change what is recovered from it."""

import pytest
import torch
from probes_models import changed, mirrored

from mtdinterp.architectures import initialise, new_model, start_names
from mtdinterp.construction import one_step
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.tasks import MTDTask
from probes import (
    compare_attention,
    decode_latents,
    identify_algorithm,
    recover_beta,
    recover_transition,
)

LENGTH, ORDER, BETA = 40, 3, 12.0
TASK = MTDTask.random(5, ORDER, seed=5)
ESTIMATES = ("attention", "output", "behaviour")


@pytest.fixture(scope="module")
def model():
    return one_step(TASK.transition, ORDER, LENGTH, BETA, dtype=torch.float64)


@pytest.fixture(scope="module")
def before(model):
    return recover_transition(model, TASK), recover_beta(model, TASK)


def constants_a_query_token(other):
    other.attention[0].W_A += torch.tensor([3.0, -20, 0.5, 7, -1], dtype=torch.float64)[:, None]


def vector_between_token_blocks(other):
    vector = torch.tensor([1.0, -2, 0.3, 0.1, 5], dtype=torch.float64)
    other.W_U[other.stream["token"]] += vector
    other.W_U[other.stream["L3.token"]] -= vector


def orthogonal_code(rotation):
    def change(other):
        """Every later copy of the lag block is read through the same rotation."""
        other.attention[0].R_V[0] = other.attention[0].R_V[0] @ rotation
        for layer in other.attention[1:]:
            for block, columns in other.stream.items():
                if block.endswith("L1.lag") and columns.stop <= layer.d_in:
                    layer.R_A[..., columns] = layer.R_A[..., columns] @ rotation
                    layer.W_A[..., columns, :] = rotation.T @ layer.W_A[..., columns, :]
                    layer.W_A[..., columns] = layer.W_A[..., columns] @ rotation

    return change


ROTATION = torch.linalg.qr(
    torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
)[0]
CHANGES = {
    "a constant for every query token": constants_a_query_token,
    "a vector moved between token blocks": vector_between_token_blocks,
    "a rotated lag code": orthogonal_code(ROTATION),
    "a negated lag code": orthogonal_code(-torch.eye(3, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_gauges_change_nothing(model, before, name):
    other = changed(model, CHANGES[name])
    tokens = TASK.sample(64, LENGTH, seed=1).tokens
    assert torch.allclose(other(tokens, last_only=True), model(tokens, last_only=True), atol=1e-6)
    transition, beta = recover_transition(other, TASK), recover_beta(other, TASK)
    for estimate in ESTIMATES:
        assert torch.allclose(
            getattr(transition, estimate), getattr(before[0], estimate), atol=1e-6
        )
    assert transition.branch == "direct"
    for level in ("weights", "attention", "output"):
        assert getattr(beta, level) == pytest.approx(getattr(before[1], level), rel=1e-6)


def test_the_papers_probe_depends_on_the_gauge(model):
    other = changed(model, constants_a_query_token)
    assert recover_transition(other, TASK).row_kl["attention_softmax"] > 0.1
    assert recover_transition(other, TASK).row_kl["attention"] < 1e-9


def test_renaming_tokens_renames_the_estimates(model, before):
    names = torch.tensor([3, 0, 4, 1, 2])
    transition = torch.empty_like(TASK.transition)
    transition[names[:, None], names[None]] = TASK.transition
    task = MTDTask(transition, ORDER)
    tokens = TASK.sample(1024, LENGTH, seed=0).tokens
    other = one_step(transition, ORDER, LENGTH, BETA, dtype=torch.float64)
    found = recover_transition(other, task, names[tokens])
    for estimate in ESTIMATES:
        renamed = getattr(found, estimate)[names[:, None], names[None]]
        assert torch.allclose(renamed, getattr(before[0], estimate), atol=1e-6)
    assert recover_beta(other, task, names[tokens]).attention == pytest.approx(
        before[1].attention, rel=1e-6
    )


def test_the_mirrored_model_is_recognised(model):
    other = mirrored(model)
    found, beta = recover_transition(other, TASK), recover_beta(other, TASK)
    assert found.branch == "mirrored"
    assert found.row_kl["attention"] < 1e-9
    assert found.row_kl["attention_softmax"] > 0.5
    assert beta.weights > 0
    assert beta.branch == "mirrored"
    assert "mirrored" in found.summary()


UNTRAINED = [
    *(("disentangled", start, 3, 5, 0) for start in start_names()),
    ("standard", "tied", 3, 5, 0),
    ("disentangled", "tied", 5, 5, 1),
    ("disentangled", "default", 3, 2, 1),
    *(
        pytest.param(*shape, marks=pytest.mark.slow)
        for shape in (
            *(("standard", start, 3, 5, 0) for start in start_names() if start != "tied"),
            ("disentangled", "default", 5, 5, 2),
            ("disentangled", "tied", 3, 2, 0),
            ("standard", "tied", 3, 2, 1),
        )
    ),
]


@pytest.mark.parametrize(("architecture", "start", "layers", "vocab_size", "seed"), UNTRAINED)
def test_untrained_models_get_no_confident_answer(architecture, start, layers, vocab_size, seed):
    task = MTDTask.random(vocab_size, ORDER, seed=5 + seed)
    model = new_model(architecture, vocab_size, LENGTH, layers, n_components=ORDER)
    initialise(model, start, seed)
    transition, beta = recover_transition(model, task), recover_beta(model, task)
    assert transition.branch == beta.branch == "undecided"
    # With two tokens a task may hardly vary, and then chance correlates more.
    assert max(beta.gain_r2, beta.attention_r2, beta.output_r2) < (0.1 if vocab_size > 2 else 0.5)
    assert transition.trusted is None
    assert "No reading is used as the model's transition matrix" in transition.summary()
    assert "may not perform one step of mirror descent at all" in beta.summary()
    assert "nan" not in transition.summary()
    assert beta.two_step is None or "No constants" in beta.two_step.summary()
    named = identify_algorithm(
        model, task, names=["uniform", "one_step", "maximum_likelihood"], n_sequences=200
    )
    assert "No estimator explains the model" in named.summary()
    attention = compare_attention(model, task)
    assert not attention.fitted
    assert "(below 0.1, and below 50% of uniform's): none." in attention.summary()
    assert "falls" not in attention.summary()
    latents = decode_latents(model, task)
    assert all(
        latents.best(name)[1].selectivity < 0.3
        for name in ("mean_responsibilities", "one_step_weights")
    )


@pytest.mark.parametrize(
    "probe",
    [recover_transition, recover_beta, compare_attention, decode_latents, identify_algorithm],
)
def test_what_does_not_fit_is_refused_in_words(model, probe):
    with pytest.raises(
        ValueError, match="task: expected a vocabulary of 5 tokens, like the model, got 4"
    ):
        probe(model, MTDTask.random(4, ORDER, seed=0))
    with pytest.raises(ValueError, match="expected at least"):
        probe(model, TASK, TASK.sample(2, LENGTH, seed=0).tokens)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_other_shapes_get_an_answer(layers, heads):
    model = DisentangledTransformer(
        DisentangledConfig(vocab_size=5, length=LENGTH, n_layers=layers, n_heads=heads, d_rel=2)
    )
    for probe in (recover_transition, recover_beta, compare_attention, decode_latents):
        assert probe(model, TASK, n_sequences=64).summary()


def test_probes_leave_the_model_untouched(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for probe in (recover_transition, recover_beta, compare_attention, decode_latents):
        probe(model, TASK, n_sequences=64)
    identify_algorithm(model, TASK, names=["one_step"], n_sequences=64)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.is_watched


@pytest.mark.parametrize("against", [[0], [0, 2], [1, 3, 4]])
@pytest.mark.parametrize("seed", [0, 1])
def test_tokens_may_be_on_different_branches_and_still_show_their_matrix(against, seed):
    task = MTDTask.random(5, 4, seed=seed)
    model = one_step(task.transition, 4, 32, 12.0)
    with torch.no_grad():
        model.attention[0].W_A[0, against] *= -1
    found = recover_transition(model, task, n_sequences=256)
    assert [token for token, gain in enumerate(found.token_gains.tolist()) if gain < 0] == against
    assert f"mirrored for {', '.join(map(str, against))};" in found.mixed
    assert found.row_kl["attention"] < 1e-9
    assert torch.isclose(
        found.token_gains, torch.ones(5, dtype=torch.float64), atol=1e-4
    ).sum() == 5 - len(against)


@pytest.mark.parametrize("architecture", ["disentangled", "standard"])
@pytest.mark.parametrize("start", ["small", "torch"])
def test_an_untrained_model_is_on_no_branch_for_any_token(architecture, start):
    fresh = new_model(architecture, 5, LENGTH, 3, n_components=ORDER)
    initialise(fresh, start, 0)
    found = recover_transition(fresh, TASK, n_sequences=256)
    assert found.token_gains.abs().max() < 0.1
    assert not found.mixed
