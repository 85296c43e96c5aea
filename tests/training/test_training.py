"""Training: the loss falls, data depends on seed and step alone, starts know nothing of the
task."""

import dataclasses

import pytest
import torch

from mtdinterp import LagSpecificMTDTask
from mtdinterp.architectures import start_names
from mtdinterp.architectures.starts import spread_code
from mtdinterp.estimators import predict_next
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
    prediction_loss,
)
from mtdinterp.tasks import MTDTask
from mtdinterp.training import (
    PAPER,
    DivergedError,
    HeldOut,
    Recipe,
    Trainer,
    fast,
    initialise,
    recipe_for,
)
from mtdinterp.training.data import batches, targets_of

TASK = MTDTask.random(3, 2, seed=0)
LENGTH = 12
HELD_OUT = HeldOut.prepare(TASK, LENGTH, n_sequences=200)
TINY = Recipe(steps=30, batch_size=16, learning_rate=1e-2, evaluate_every=10, save_every=10)


def disentangled(n_layers=3, logits=False):
    return DisentangledTransformer(
        DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2, n_layers=n_layers, logits=logits)
    )


def standard(n_layers=3, logits=False):
    return StandardTransformer(
        StandardConfig(vocab_size=3, length=LENGTH, d_model=8, n_layers=n_layers, logits=logits)
    )


def trained(model, recipe, seed=0):
    initialise(model, recipe.initialisation, seed)
    trainer = Trainer(model, TASK, recipe, seed, HELD_OUT)
    trainer.run()
    return trainer


@pytest.mark.parametrize("build", [disentangled, standard])
@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
@pytest.mark.parametrize("supervision", ["last", "all"])
@pytest.mark.parametrize("targets", ["expected", "sampled"])
def test_the_loss_falls(build, loss, supervision, targets):
    recipe = dataclasses.replace(
        TINY,
        steps=150,
        evaluate_every=50,
        loss=loss,
        supervision=supervision,
        targets=targets,
        initialisation="default",
    )
    trainer = trained(build(logits=loss == "cross-entropy"), recipe)
    assert trainer.history[-1]["loss"] < trainer.history[1]["loss"]
    assert trainer.history[-1]["kl"] < trainer.history[0]["kl"]
    assert [entry["step"] for entry in trainer.history] == [0, 50, 100, 150]


@pytest.mark.parametrize(("loss", "logits"), [("mse", True), ("cross-entropy", False)])
def test_a_loss_for_another_kind_of_output_is_refused(loss, logits):
    with pytest.raises(ValueError, match=f"logits={not logits}: cross-entropy trains logits"):
        trained(disentangled(logits=logits), dataclasses.replace(TINY, loss=loss))


def test_a_tiny_model_beats_uniform_weights():
    """Two lags at T = 12, some seconds: the mechanism is there, not just the average."""
    task = MTDTask(torch.tensor([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]]), 2)
    held_out = HeldOut.prepare(task, LENGTH, n_sequences=500)
    model = disentangled()
    recipe = dataclasses.replace(fast(), steps=1500, evaluate_every=500)
    initialise(model, recipe.initialisation, seed=0)
    trainer = Trainer(model, task, recipe, 0, held_out)
    trainer.run()
    assert trainer.history[-1]["kl"] < 0.7 * held_out.kl["uniform"]


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    first, second, other = (trained(disentangled(), TINY, seed) for seed in (0, 0, 1))
    for (name, left), right in zip(
        first.model.named_parameters(), second.model.parameters(), strict=True
    ):
        assert torch.equal(left, right), name
    assert not torch.equal(first.model.W_U, other.model.W_U)


@pytest.mark.parametrize("build", [disentangled, standard])
@pytest.mark.parametrize("kernel", ["eager", "auto"])
def test_gradients_are_the_same_bits_on_several_threads(build, kernel, monkeypatch):
    monkeypatch.setenv("MTDINTERP_KERNEL", kernel)
    model, data = build(), TASK.sample(1024, LENGTH, seed=0)  # enough for torch to share them out
    initialise(model, "default", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = set()
        for _ in range(10):
            loss = prediction_loss(model, data.tokens, data.next_probs.float())
            gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            found.add(b"".join(part.numpy().tobytes() for part in gradients if part is not None))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_layers_may_have_rates_of_their_own():
    recipe = dataclasses.replace(
        TINY, steps=10, later_rate=0.25, schedule="constant", initialisation="default"
    )
    assert [recipe.later_share(step) for step in (0, 1, 9)] == [1, 0.25, 0.25]
    for build in (disentangled, standard):
        model = build()
        initialise(model, recipe.initialisation, 0)
        start = {name: value.clone() for name, value in model.state_dict().items()}
        trainer = Trainer(model, TASK, recipe, 0, HELD_OUT, step=1)
        trainer.run(after_step=lambda trainer: False)
        # Adam's first step moves every weight that has a gradient by just its rate.
        moved = {
            name: (value - start[name]).abs().max().item()
            for name, value in model.state_dict().items()
        }
        for name, distance in moved.items():
            first = name.startswith(("embed.", "blocks.0."))
            assert (
                distance == pytest.approx(0.01 if first else 0.0025, rel=1e-2) or distance == 0
            ), name
        assert {round(distance, 4) for distance in moved.values()} >= {0.01, 0.0025}


def test_a_posterior_mean_that_is_too_expensive_is_sampled_with_a_note(monkeypatch):
    exact = HeldOut.prepare(TASK, LENGTH, n_sequences=50)
    assert exact.notes == {}
    monkeypatch.setattr("mtdinterp.estimators.posterior.COMPARING_NODES", 3)
    held_out = HeldOut.prepare(TASK, LENGTH, n_sequences=50)
    assert held_out.left_out == {}
    assert held_out.kl["exact_bayes"] == pytest.approx(exact.kl["exact_bayes"], rel=0.02)
    assert held_out.kl["exact_bayes"] != exact.kl["exact_bayes"]
    assert held_out.notes["exact_bayes"].startswith("sampled for 50 of 50 sequences, because exact")
    again = HeldOut.prepare(TASK, LENGTH, n_sequences=50)
    assert (again.kl, again.notes) == (held_out.kl, held_out.notes)


def test_another_error_of_the_posterior_mean_is_not_hidden(monkeypatch):
    def broken(evidence, *arguments):
        raise ValueError("a bug")

    monkeypatch.setattr("mtdinterp.estimators.posterior.posterior_mean_of", broken)
    with pytest.raises(ValueError, match="a bug"):
        HeldOut.prepare(TASK, LENGTH, n_sequences=50)


def test_a_task_without_anything_to_tune_trains_without_a_ratio():
    """With equal rows every lag explains every token equally well, so no rate is better."""
    task = MTDTask(torch.full((3, 3), 1 / 3), 2)
    held_out = HeldOut.prepare(task, LENGTH, n_sequences=50)
    assert set(held_out.kl) == {"uniform", "exact_bayes"}
    assert set(held_out.left_out) == {"one_step", "two_step"}
    assert "nothing to tune" in held_out.left_out["one_step"]
    assert held_out.beta is None
    trainer = Trainer(disentangled(), task, dataclasses.replace(TINY, steps=2), 0, held_out)
    trainer.run()
    assert [entry["ratio"] for entry in trainer.history] == [None, None]
    assert trainer.history[-1]["kl"] > 0


@pytest.mark.parametrize("supervision", ["last", "all"])
def test_every_kind_of_task_trains(supervision):
    task = LagSpecificMTDTask.random(3, 2, seed=0)
    held_out = HeldOut.prepare(task, LENGTH, n_sequences=200)
    assert set(held_out.kl) == {"uniform", "one_step", "two_step", "exact_bayes"}
    assert held_out.kl["exact_bayes"] < held_out.kl["one_step"] < held_out.kl["uniform"]
    recipe = dataclasses.replace(TINY, steps=150, evaluate_every=150, supervision=supervision)
    model = disentangled()
    initialise(model, "default", 0)
    trainer = Trainer(model, task, recipe, 0, held_out)
    trainer.run()
    assert trainer.history[-1]["kl"] < trainer.history[0]["kl"]
    assert trainer.history[-1]["ratio"] > 0
    # There is no single matrix that layer 1 could show.
    assert trainer.history[-1]["transition_kl"] is None


def test_several_heads_do_not_change_the_depth_of_a_recipe():
    assert fast(n_layers=5, n_heads=2).steps == fast(n_layers=5).steps


def test_micro_batches_add_up_to_the_batch():
    whole = trained(disentangled(), dataclasses.replace(TINY, steps=5))
    parts = trained(disentangled(), dataclasses.replace(TINY, steps=5, micro_batch_size=6))
    for left, right in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(left, right, atol=1e-5)
    assert whole.history[-1]["loss"] == pytest.approx(parts.history[-1]["loss"], rel=1e-4)


@pytest.mark.parametrize("first_step", [0, 1, 7, 29])
def test_data_goes_on_where_it_would_have(first_step, monkeypatch):
    monkeypatch.setattr(
        "mtdinterp.training.data.CHUNK_TOKENS", 16 * LENGTH * 4
    )  # four steps a chunk
    everything = list(batches(TASK, LENGTH, TINY, seed=3))
    rest = list(batches(TASK, LENGTH, TINY, seed=3, first_step=first_step))
    assert len(everything) == 30
    assert len(rest) == 30 - first_step
    for left, right in zip(everything[first_step:], rest, strict=True):
        assert torch.equal(left.tokens, right.tokens)
        assert torch.equal(left.targets, right.targets)


def test_conditional_probabilities_are_those_of_every_prefix():
    data = TASK.sample(5, LENGTH, seed=1)
    probs = TASK.true_next_everywhere(data.tokens, data.weights)
    assert torch.allclose(probs[:, : TASK.order - 1], torch.full((), 1 / 3, dtype=torch.float64))
    for position in range(TASK.order - 1, LENGTH):
        expected = predict_next(TASK.transition, data.tokens[:, : position + 1], data.weights)
        assert torch.allclose(probs[:, position], expected, atol=1e-12)
    assert torch.allclose(probs[:, -1], data.next_probs, atol=1e-12)


def test_sampled_targets_are_the_tokens_that_follow():
    data = TASK.sample(5, LENGTH, seed=1)
    everywhere = targets_of(
        TASK, data, dataclasses.replace(TINY, targets="sampled", supervision="all")
    )
    assert torch.equal(everywhere.argmax(-1)[:, :-1], data.tokens[:, 1:])
    assert torch.equal(everywhere.argmax(-1)[:, -1], data.next_tokens)
    last = targets_of(TASK, data, dataclasses.replace(TINY, targets="sampled"))
    assert torch.equal(last, everywhere[:, -1])


@pytest.mark.parametrize("name", start_names())
@pytest.mark.parametrize("n_layers", [3, 5])
@pytest.mark.parametrize("build", [disentangled, standard])
def test_starts_are_functions_of_shape_and_seed(build, name, n_layers):
    first, again, other = (build(n_layers) for _ in range(3))
    before = torch.random.get_rng_state()
    initialise(first, name, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.randn(3)
    initialise(again, name, seed=4)
    initialise(other, name, seed=5)
    for (key, left), right in zip(first.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right), key
        assert left.isfinite().all()
    assert not torch.equal(first.blocks[0].attn.R_V, other.blocks[0].attn.R_V)


def test_tied_and_mirrored_starts_differ_in_a_sign():
    direct, opposite = disentangled(), disentangled()
    initialise(direct, "tied", seed=0)
    initialise(opposite, "mirrored", seed=0)
    block = direct.stream["L2.L1.lag"]
    left, right = (model.blocks[-1].attn.R_A[0, :-1, block] for model in (direct, opposite))
    assert torch.equal(left, -right)
    writes = direct.blocks[0].attn.R_V[0, 1:]
    agreement = torch.nn.functional.cosine_similarity(left, writes, dim=-1)
    assert (agreement > 0.999).all()  # what is read at offset k is what is written at k + 1


def test_the_standard_tie_carries_an_offset_from_layer_to_layer():
    """What layer 1 writes for offset k + 1 and layer 2 passes on scores highest at offset k, tokens
    alone nowhere."""
    model = StandardTransformer(StandardConfig(vocab_size=3, length=LENGTH, d_model=24))
    initialise(model, "tied", seed=0)
    first, second, last = (layer.attn for layer in model.blocks)
    arrives = first.R_V[0] @ first.W_O[0] @ second.W_V[0] @ second.W_O[0]
    scores = arrives @ last.W_Q[0] @ last.R_K[0].T / last.d_head**0.5
    assert torch.equal(scores[1:4].argmax(-1), torch.tensor([0, 1, 2]))
    tokens = model.W_E @ last.W_Q[0] @ last.R_K[0].T / last.d_head**0.5
    assert tokens.abs().max() < 0.2 * scores[1:4].max(-1).values.min()


def test_neighbouring_offsets_have_orthogonal_codes():
    code = torch.nn.functional.normalize(spread_code(20, 4), dim=-1)
    gram = code[1:17].reshape(4, 4, 4) @ code[1:17].reshape(4, 4, 4).mT
    assert torch.allclose(gram, torch.eye(4).expand(4, 4, 4), atol=1e-5)


def test_tied_starts_say_what_they_need():
    with pytest.raises(ValueError, match="at least three layers with one head each, got 2"):
        initialise(disentangled(2), "tied", 0)
    with pytest.raises(ValueError, match=r"d_model ≥ vocab_size \+ 3, got 5"):
        initialise(
            StandardTransformer(StandardConfig(vocab_size=3, length=LENGTH, d_model=5)), "tied", 0
        )


def test_divergence_is_one_clear_error():
    with pytest.raises(DivergedError, match="try a smaller learning rate than 1e"):
        trained(disentangled(), dataclasses.replace(TINY, learning_rate=1e30, schedule="constant"))


def test_recipes():
    assert (PAPER.steps, PAPER.batch_size, PAPER.learning_rate, PAPER.schedule) == (
        500_000,
        128,
        1e-3,
        "constant",
    )
    assert (PAPER.targets, PAPER.loss, PAPER.supervision, PAPER.adam_betas) == (
        "sampled",
        "mse",
        "last",
        (0.9, 0.999),
    )
    assert PAPER.rate_at(0) == PAPER.rate_at(499_999) == 1e-3
    cosine = dataclasses.replace(TINY, schedule="cosine", warmup=10)
    assert cosine.rate_at(0) == pytest.approx(1e-3, rel=0.01)
    assert cosine.rate_at(29) < 1e-4
    assert Recipe.from_dict(TINY.to_dict()) == TINY
    assert recipe_for("fast", "standard", 3, steps=7, batch_size=None).steps == 7
    with pytest.raises(ValueError, match="recipe field"):
        Recipe.from_dict({**TINY.to_dict(), "momentum": 1})
    with pytest.raises(ValueError, match="loss"):
        dataclasses.replace(TINY, loss="hinge")
    with pytest.raises(ValueError, match="steps"):
        dataclasses.replace(TINY, steps=0)
