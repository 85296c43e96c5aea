"""Architectures are looked up, never guessed: a third one works like the built-in ones."""

import logging

import pytest
import torch
from architectures.toy_architecture import Positional, PositionalConfig, PositionalTransformer

from mtdinterp import CheckpointError, load_checkpoint, registry, save_checkpoint
from mtdinterp.architectures import Architecture, architecture_of, initialise, new_model
from mtdinterp.catalogue import built_in
from mtdinterp.interventions import Edit, patch
from mtdinterp.models import (
    DisentangledTransformer,
    StandardTransformer,
    attention,
    lens,
    loss,
    prediction_loss,
)
from mtdinterp.models.loss import loss_of_outputs
from mtdinterp.plugins import register_architecture
from mtdinterp.readings import predictions_of
from mtdinterp.tasks import MTDTask
from mtdinterp.training import HeldOut, Recipe, Trainer, fast, recipe_for

TASK = MTDTask.random(3, 2, seed=0)
LENGTH = 12
TOKENS = TASK.sample(20, LENGTH, seed=1).tokens


@pytest.fixture
def positional():
    register_architecture(Positional)
    yield registry.ARCHITECTURES["positional"]
    registry.ARCHITECTURES.remove("positional")


@pytest.fixture
def toy(positional):
    torch.manual_seed(0)
    return positional.new_model(3, LENGTH, n_layers=2, n_heads=2)


def test_the_catalogue_lists_what_is_registered():
    listed = built_in("mtdinterp.architectures", "register_architecture")
    known = {name: item.label for name, item in registry.ARCHITECTURES.items()}
    assert listed == known
    assert list(known) == ["disentangled", "standard"]


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    message = "architecture: expected one of disentangled, standard; got 'standrad'; did you mean"
    with pytest.raises(ValueError, match=message):
        new_model("standrad", 3, LENGTH)
    with pytest.raises(ValueError, match=message):
        fast("standrad")


def test_an_unknown_setting_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="disentangled setting: expected one of d_rel; got"):
        new_model("disentangled", 3, LENGTH, d_model=8)
    with pytest.raises(ValueError, match="standard setting: expected one of d_model, d_head, "):
        new_model("standard", 3, LENGTH, d_rel=8)


def test_common_settings_reach_every_architecture():
    shape = {"n_components": 3, "d_mlp": 5, "logits": True}
    for name in registry.ARCHITECTURES:
        config = new_model(name, 4, LENGTH, 2, 2, **shape).config
        assert config.architecture == name
        assert (config.vocab_size, config.length, config.n_layers) == (4, LENGTH, 2)
        assert (config.heads_per_layer, config.d_mlp, config.logits) == ((2, 2), 5, True)
    assert new_model("disentangled", 4, LENGTH, n_components=3).config.d_rel == 3
    assert new_model("disentangled", 4, LENGTH, n_components=3, d_rel=6).config.d_rel == 6


def test_a_configuration_for_another_architecture_is_refused():
    class Wrong(Architecture):
        name, label, config = "wrong", "wrong", PositionalConfig

    with pytest.raises(ValueError, match="a configuration for 'wrong', got one for 'positional'"):
        Wrong()


def test_recipes_ask_the_architecture(positional):
    assert fast("positional", 5).learning_rate == 2e-2
    assert fast("positional", 5).steps == fast("disentangled", 3).steps
    assert fast("positional", 3).initialisation == "default"
    assert recipe_for("fast", "positional", 3, steps=4).name == "fast, changed"


def test_a_third_architecture_has_its_own_starts_only(toy):
    with pytest.raises(ValueError, match="initialisation: expected one of default, small; got"):
        initialise(toy, "tied", seed=0)
    initialise(toy, "small", seed=0)
    assert max(parameter.abs().max() for parameter in toy.parameters()) < 0.2


def test_a_third_architecture_computes_its_own_formula(toy):
    """Attention by position alone, written out for one layer and one head."""
    small = Positional().new_model(3, LENGTH, n_layers=1).double()
    attn = small.blocks[0].attn
    weights = attn.R[0, :, 0].flip(0).softmax(0)  # of the last query: offset T-1 down to 0
    stream = small.W_E[TOKENS]
    gathered = torch.einsum("k,bkd->bd", weights, stream) @ attn.W_V[0] @ attn.W_O[0]
    expected = (stream[:, -1] + gathered) @ small.W_U
    assert torch.allclose(predictions_of(small, TOKENS), expected.detach())


def test_a_third_architecture_trains_saves_loads_and_is_patched(toy, tmp_path, caplog):
    assert architecture_of(toy).name == "positional"
    recipe = Recipe(steps=40, batch_size=32, learning_rate=1e-2, initialisation="default")
    held_out = HeldOut.prepare(TASK, LENGTH, n_sequences=200)
    trainer = Trainer(toy, TASK, recipe, 0, held_out)
    with caplog.at_level(logging.INFO, logger="mtdinterp"):
        trainer.run()
    assert trainer.history[-1]["kl"] < trainer.history[0]["kl"]
    path = "attention path: eager (the positional architecture has no compiled kernels)"
    assert [record.message for record in caplog.records] == [f"mtdinterp: {path}"]

    save_checkpoint(tmp_path / "toy", toy, TASK)
    loaded = load_checkpoint(tmp_path / "toy")
    assert type(loaded.model) is PositionalTransformer
    assert loaded.model.config == toy.config
    assert torch.equal(predictions_of(loaded.model, TOKENS), predictions_of(toy, TOKENS))

    first_only = torch.zeros(LENGTH)
    first_only[0] = 1
    found = patch(toy, TOKENS, [Edit("pattern", first_only, layer=1, position=-1)])
    assert torch.equal(found.weights_after[0, 0], first_only.flip(0))
    assert (found.kl > 0).any()


def test_the_loss_of_a_model_without_kernels_is_its_definition(toy):
    targets = torch.rand(len(TOKENS), 3)
    outputs = toy(TOKENS, last_only=True)
    expected = loss_of_outputs(outputs, targets, "mse")
    assert torch.equal(prediction_loss(toy, TOKENS, targets), expected)
    with pytest.raises(NotImplementedError, match="PositionalTransformer has no folded form"):
        toy.folded_layers()


def test_a_checkpoint_of_an_architecture_that_is_not_registered_is_one_sentence(tmp_path):
    register_architecture(Positional)
    try:
        model = new_model("positional", 3, LENGTH)
        save_checkpoint(tmp_path / "toy", model, TASK)
    finally:
        registry.ARCHITECTURES.remove("positional")
    message = r"config.json: architecture: expected one of disentangled, standard; got 'positional'"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "toy")


def test_models_have_three_layers_of_one_head_unless_told_otherwise():
    config = new_model("disentangled", 3, LENGTH).config
    assert (config.n_layers, config.n_heads) == (3, 1)


@pytest.mark.parametrize("name", ["disentangled", "standard"])
def test_models_say_which_attention_path_runs(name, monkeypatch):
    model = new_model(name, 3, LENGTH)
    assert model.attention_path(training=True).name == "whole step"
    assert str(model.attention_path()) == "operator (the outputs must be differentiable)"
    with torch.no_grad():
        assert model.attention_path().name == "whole pass"
    hook = ("hook_embed", lambda value, hook: value)
    with model.hooks(fwd_hooks=[hook]):
        assert str(model.attention_path(training=True)) == "eager (hooks are attached)"
    assert new_model(name, 3, LENGTH, d_mlp=4).attention_path(training=True).name == "operator"
    assert new_model(name, 3, LENGTH).double().attention_path(training=True).name == "eager"
    monkeypatch.setenv("MTDINTERP_KERNEL", "eager")
    assert model.attention_path(training=True).name == "eager"
    assert model.attention_path().name == "eager"


@pytest.mark.parametrize("name", ["disentangled", "standard"])
def test_the_path_that_is_reported_is_the_one_that_runs(name, monkeypatch):
    model = new_model(name, 3, LENGTH)
    called = []

    def noting(module, function):
        original = getattr(module, function)

        def noted(*arguments):
            called.append(function)
            return original(*arguments)

        monkeypatch.setattr(module, function, noted)

    noting(loss, "fused_loss")
    noting(lens, "fused_outputs")
    noting(attention, "fused_relative_attention")
    noting(attention, "eager_relative_attention")
    prediction_loss(model, TOKENS, torch.rand(len(TOKENS), 3))
    assert set(called) == {"fused_loss"}
    called.clear()
    predictions_of(model, TOKENS)
    assert set(called) == {"fused_outputs"}
    called.clear()
    model(TOKENS)
    assert set(called) == {"fused_relative_attention"}
    called.clear()
    model.run_with_cache(TOKENS, names_filter="hook_embed")
    assert set(called) == {"eager_relative_attention"}


def test_layers_have_their_type():
    for model_type, name in (
        (DisentangledTransformer, "disentangled"),
        (StandardTransformer, "standard"),
    ):
        model = new_model(name, 3, LENGTH, n_heads=2)
        assert isinstance(model, model_type)
        for block, layer in zip(model.blocks, model.layers, strict=True):
            assert layer is block
            assert layer.attn.n_heads == 2
            assert layer.attn.W_Q.shape[:2] == (2, model.cfg.d_model)
