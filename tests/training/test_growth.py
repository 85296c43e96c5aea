"""Growing a model: what is copied, what is new, and what happens to attention beyond the lags."""

import math

import pytest
import torch

from mtdinterp import MTDTask
from mtdinterp.architectures import initialise
from mtdinterp.construction import one_step
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
)
from mtdinterp.training import grow

TASK = MTDTask.random(4, 3, seed=0)


def disentangled(**settings):
    config = DisentangledConfig(**{"vocab_size": 4, "length": 12, "d_rel": 3, **settings})
    model = DisentangledTransformer(config)
    initialise(model, "torch", 0)
    return model


def standard(**settings):
    config = StandardConfig(**{"vocab_size": 4, "length": 12, "n_layers": 3, **settings})
    model = StandardTransformer(config)
    initialise(model, "torch", 0)
    return model


MODELS = [
    disentangled(),
    disentangled(n_heads=2),
    disentangled(n_layers=5),
    disentangled(n_layers=1),
    standard(),
    standard(n_heads=2),
]
TABLES = ("R_A", "R_V", "R_K")


@pytest.mark.parametrize("model", MODELS)
def test_weights_are_copied_and_far_rows_are_the_mean_of_the_last_quarter(model):
    grown = grow(model, 20)
    old = dict(model.named_parameters())
    assert grown.config.length == 20
    assert model.config.length == 12
    for name, new in grown.named_parameters():
        table = name.split(".")[-1]
        if table not in TABLES:
            assert torch.equal(new, old[name])
        elif table == "R_V":
            assert torch.equal(new[:, :12], old[name])
            mean = old[name][:, 9:].mean(1, keepdim=True).expand(-1, 8, -1)
            torch.testing.assert_close(new[:, 12:], mean)


def first_scores(model, tokens):
    """Scores of layer 1 at the last position, by offset, [batch, head, offset]."""
    _, cache = model.run_with_cache(tokens)
    return cache["blocks.0.attn.hook_attn_scores"][:, :, -1].flip(-1)


@pytest.mark.parametrize("model", [disentangled(), disentangled(n_heads=2), standard()])
def test_scores_beyond_the_lags_fall_by_the_log_of_the_ratio(model):
    """Exactly so in layer 1, where the query of every token is known."""
    tokens = TASK.sample(5, 12, seed=1).tokens
    before = first_scores(model, tokens)
    after = first_scores(grow(model, 24, TASK.order), tokens)
    lags = slice(1, TASK.order + 1)
    torch.testing.assert_close(after[..., lags], before[..., lags])
    fall = (before - after)[..., TASK.order + 1 :]
    torch.testing.assert_close(fall, torch.full_like(fall, math.log(2)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [disentangled(), standard()])
def test_a_longer_sequence_gives_far_positions_no_more_attention(model):
    """With scores that do not depend on the position, twice as many positions share the same."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("R_A", "R_K", "W_A", "W_K")):
                parameter.zero_()
    grown = grow(model, 24, TASK.order)
    short = TASK.sample(3, 12, seed=1).tokens
    long = TASK.sample(3, 24, seed=1).tokens

    def on_lags(some, tokens):
        _, cache = some.run_with_cache(tokens)
        pattern = cache["blocks.0.attn.hook_pattern"][:, 0, -1].flip(-1)
        return pattern[:, 1 : TASK.order + 1].sum(-1)

    before, after = on_lags(model, short), on_lags(grown, long)
    without = 3 / 24  # as many of the attention as of the positions
    assert (after - before).abs().max() < 0.3 * (before - without).abs().min()


def test_the_same_length_is_a_copy():
    model = disentangled()
    same = grow(model, 12, 3)
    for name, parameter in same.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name])
    assert same is not model


def test_a_shorter_length_is_refused():
    with pytest.raises(ValueError, match="expected at least the model's 12, got 8"):
        grow(disentangled(), 8)


def test_a_grown_construction_still_finds_the_lags():
    """The far offsets of the construction have scores of -δ, and the new ones too."""
    model = one_step(TASK.transition, TASK.order, 12, 5.0)
    grown = grow(model, 24, TASK.order)
    tokens = TASK.sample(4, 24, seed=2).tokens
    _, cache = grown.run_with_cache(tokens)
    lags = cache["blocks.0.attn.hook_pattern"][:, 0, -1].flip(-1)[:, 1 : TASK.order + 1]
    torch.testing.assert_close(lags.sum(-1), torch.ones(4))


def test_the_precision_is_kept():
    grown = grow(disentangled().double(), 20, 3)
    assert {parameter.dtype for parameter in grown.parameters()} == {torch.float64}


def test_tiny_queries_leave_the_scores_as_they_are():
    """A row that lowers their scores by 1 would have to be huge."""
    model = standard()
    with torch.no_grad():
        model.attention[0].W_Q *= 1e-4
    before = model.attention[0].R_K.detach()
    after = grow(model, 20, 3).attention[0].R_K.detach()
    assert torch.equal(after[:, :12], before)


def test_the_last_layer_keeps_its_lags_and_the_layers_between_keep_everything():
    """The last layer reads lag g at offset g-1, so its far offsets begin one earlier."""
    model = disentangled()
    before = [attn.R_A.detach() for attn in model.attention]
    after = [attn.R_A.detach() for attn in grow(model, 24, 3).attention]
    token = model.stream["token"]
    assert torch.equal(after[1][:, :12], before[1])
    fall = (before[2] - after[2][:, :12])[..., token]
    assert torch.equal(fall[:, :3], torch.zeros_like(fall[:, :3]))
    torch.testing.assert_close(fall[:, 3:], torch.full_like(fall[:, 3:], math.log(2)))


def test_the_last_layer_of_a_standard_model_is_changed_beyond_the_lags():
    model = standard()
    before = model.attention[2].R_K.detach()
    after = grow(model, 24, 3).attention[2].R_K.detach()[:, :12]
    assert torch.equal(after[:, :3], before[:, :3])
    assert (after[:, 3:] - before[:, 3:]).abs().min() > 0
