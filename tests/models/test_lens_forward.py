"""Parts of a forward pass, its losses and its text, as TransformerLens' users ask for them."""

import pytest
import torch
from transformer_lens.utilities import lm_cross_entropy_loss

from mtdinterp.errors import NotApplicable
from mtdinterp.models import DisentangledConfig, DisentangledTransformer

VOCAB, LENGTH = 3, 5


@pytest.fixture
def logit_model() -> DisentangledTransformer:
    config = DisentangledConfig(vocab_size=VOCAB, length=LENGTH, n_layers=2, d_rel=2, logits=True)
    return DisentangledTransformer(config).double()


def test_stopping_at_a_layer_gives_the_stream_before_it(model, clean):
    _, cache = model.run_with_cache(clean)
    for layer in range(2):
        torch.testing.assert_close(model(clean, stop_at_layer=layer), cache["resid_pre", layer])
    torch.testing.assert_close(model(clean, stop_at_layer=2), cache["resid_post", 1])
    torch.testing.assert_close(model(clean, stop_at_layer=-1), cache["resid_pre", 1])


def test_layers_after_the_stop_do_not_run(model, clean):
    stream, cache = model.run_with_cache(clean, return_type=None, stop_at_layer=1)
    assert "blocks.0.hook_resid_post" in cache
    assert not [name for name in cache if name.startswith("blocks.1")]
    torch.testing.assert_close(stream, cache["resid_post", 0])
    embedded, cache = model.run_with_cache(clean, stop_at_layer=0)
    assert list(cache) == ["hook_embed"]
    assert torch.equal(embedded, model.W_E[clean])


def test_starting_where_a_run_stopped_completes_it(model, clean):
    outputs = model(clean)
    for layer in (0, 1, 2, -1):
        stream = model(clean, stop_at_layer=layer)
        torch.testing.assert_close(model(stream, start_at_layer=layer), outputs)
    middle = model(model(clean, stop_at_layer=0), start_at_layer=0, stop_at_layer=1)
    torch.testing.assert_close(middle, model(clean, stop_at_layer=1))


def test_hooks_see_a_run_that_starts_in_the_middle(model, clean):
    stream = model(clean, stop_at_layer=1)
    _, whole = model.run_with_cache(clean)
    _, part = model.run_with_cache(stream, start_at_layer=1)
    assert not [name for name in part if name.startswith(("hook_embed", "blocks.0"))]
    torch.testing.assert_close(part["pattern", 1], whole["pattern", 1])


def test_columns_that_later_layers_write_must_be_empty(model, clean):
    stream = model(clean, stop_at_layer=1)
    moved = stream + 1
    if isinstance(model, DisentangledTransformer):
        with pytest.raises(ValueError, match=r"start_at_layer: layer 1 reads columns 0\.\.12"):
            model(moved, start_at_layer=1)
    else:
        assert not torch.equal(model(moved, start_at_layer=1), model(clean))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stop_at_layer": 3}, r"stop_at_layer: expected a layer in -2\.\.2, got 3"),
        ({"stop_at_layer": 1, "last_only": True}, "need last_only=False"),
        ({"stop_at_layer": 1, "return_type": "loss"}, 'return_type "logits" or None'),
        ({"start_at_layer": 1}, r"start_at_layer: expected the stream .* got \(3, 5\)"),
    ],
)
def test_parts_that_make_no_sense_are_refused(model, clean, arguments, message):
    with pytest.raises(ValueError, match=message):
        model(clean, **arguments)


def test_a_run_cannot_stop_before_it_starts(model, clean):
    stream = model(clean, stop_at_layer=1)
    with pytest.raises(ValueError, match="stop_at_layer: expected a layer from start_at_layer = 1"):
        model(stream, start_at_layer=1, stop_at_layer=0)


def test_the_stream_is_as_long_as_sequences_may_be(model, clean):
    stream = model(clean, stop_at_layer=1).repeat(1, 2, 1)
    with pytest.raises(ValueError, match=r"tokens: expected a length in 1\.\.5, got 10"):
        model(stream, start_at_layer=1)


def test_return_types(model, clean):
    outputs, loss = model(clean, return_type="both")
    torch.testing.assert_close(outputs, model(clean))
    torch.testing.assert_close(loss, model(clean, return_type="loss"))
    assert model(clean, return_type=None) is None
    per_token = model(clean, return_type="loss", loss_per_token=True)
    assert per_token.shape == (3, 4)
    torch.testing.assert_close(per_token.mean(), loss)
    one_hot = torch.eye(VOCAB).double()[clean[:, 1:]]
    torch.testing.assert_close(per_token, (outputs[:, :-1] - one_hot).square().mean(-1))


@pytest.mark.parametrize("per_token", [False, True])
def test_the_loss_of_logits_is_the_cross_entropy(logit_model, clean, per_token):
    loss = logit_model(clean, return_type="loss", loss_per_token=per_token)
    expected = lm_cross_entropy_loss(logit_model(clean), clean, per_token=per_token)
    torch.testing.assert_close(loss, expected)


def test_text_and_tokens_convert_into_each_other(model):
    tokens = model.to_tokens(["0 2 1", "1 1 0"])
    assert model.to_string(tokens) == ["0 2 1", "1 1 0"]
    assert model.to_string(tokens[0]) == "0 2 1"
    assert model.to_string(2) == model.to_single_str_token(2) == "2"
    assert model.to_single_token(" 2") == 2
    with pytest.raises(ValueError, match=r"tokens: expected shape \[pos\] or \[batch, pos\]"):
        model.to_string(tokens[None])


def test_positions_of_tokens(model):
    assert model.get_token_position("2", "0 2 1 2") == 1
    assert model.get_token_position(2, torch.tensor([0, 2, 1, 2]), mode="last") == 3
    with pytest.raises(ValueError, match="single_token: 1 does not occur in the sequence"):
        model.get_token_position(1, "0 2")
    with pytest.raises(ValueError, match="input: expected one sequence, got 2"):
        model.get_token_position(1, ["0 1", "1 0"])


def test_there_is_no_token_to_prepend(model, clean):
    torch.testing.assert_close(model(clean, prepend_bos=False), model(clean))
    for call in (model, model.to_tokens, model.to_str_tokens, model.generate):
        with pytest.raises(NotApplicable, match="prepend_bos: these models have no beginning"):
            call(clean, prepend_bos=True)


@pytest.mark.parametrize("name", ["attention_mask", "past_kv_cache", "padding_side"])
def test_arguments_without_a_meaning_here_are_refused_in_a_sentence(model, clean, name):
    torch.testing.assert_close(model(clean, **{name: None}), model(clean))
    with pytest.raises(NotApplicable, match=f"^{name}: .*; leave it out or pass None"):
        model(clean, **{name: clean})


def test_an_unknown_argument_is_unexpected(model, clean):
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        model(clean, nonsense=None)


def test_a_cache_can_be_a_plain_dictionary(model, clean):
    _, cache = model.run_with_cache(clean, return_cache_object=False)
    assert isinstance(cache, dict)
