"""Generated tokens follow the model's predicted distribution, whatever its outputs mean."""

from dataclasses import replace

import pytest
import torch

from mtdinterp import MTDTask
from mtdinterp.construction import one_step
from mtdinterp.errors import NotApplicable
from mtdinterp.models import DisentangledConfig, DisentangledTransformer, LensTransformer
from mtdinterp.models.generation import next_log_probabilities

VOCAB, LENGTH = 3, 5
DRAWS = 4000


@pytest.fixture
def speaker(model: LensTransformer) -> LensTransformer:
    """A random model whose outputs are logits, so that every token can be drawn."""
    model.config = replace(model.config, logits=True)
    return model


def frequencies(tokens: torch.Tensor) -> torch.Tensor:
    return torch.bincount(tokens, minlength=VOCAB).double() / len(tokens)


def assert_drawn_from(drawn: torch.Tensor, distribution: torch.Tensor) -> None:
    """Every frequency is within five standard deviations of its probability."""
    deviation = (distribution * (1 - distribution) / len(drawn)).sqrt()
    assert ((frequencies(drawn) - distribution).abs() <= 5 * deviation + 1e-12).all()


def test_probabilities_are_drawn_as_they_are(constructed):
    """A softmax of the construction's outputs would be far from them."""
    model, tokens = constructed.model, constructed.clean
    outputs = model(tokens, last_only=True).detach()
    surest = outputs.amax(-1).argmax()
    drawn = model.generate(tokens[surest].expand(DRAWS, -1), max_new_tokens=1, seed=0)[:, -1]
    assert_drawn_from(drawn, outputs[surest])
    with pytest.raises(AssertionError):
        assert_drawn_from(drawn, outputs[surest].softmax(-1))


def test_logits_are_drawn_by_their_softmax(clean):
    config = DisentangledConfig(vocab_size=VOCAB, length=LENGTH, n_layers=1, d_rel=2, logits=True)
    model = DisentangledTransformer(config).double()
    with torch.no_grad():
        model.unembed.W_U.mul_(50)
    drawn = model.generate(clean[:1].expand(DRAWS, -1), max_new_tokens=1, seed=0)[:, -1]
    assert_drawn_from(drawn, model(clean[:1], last_only=True)[0].softmax(-1).detach())


def test_negative_outputs_are_never_drawn(model, clean):
    """Outputs of a model with random weights are no distribution: they are clipped first."""
    outputs = model(clean, last_only=True).detach()
    assert (outputs < 0).any()
    clipped = outputs.clamp_min(0)
    usable = clipped.sum(-1) > 0
    expected = clipped[usable] / clipped[usable].sum(-1, keepdim=True)
    found = next_log_probabilities(model, clean[usable]).exp().detach()
    torch.testing.assert_close(found, expected)


def test_a_model_without_a_positive_output_has_nothing_to_draw(model, clean):
    with torch.no_grad():
        model.unembed.W_U.zero_()
    with pytest.raises(NotApplicable, match="generate: after 3 of 3 sequences no output"):
        model.generate(clean, 1)
    assert model.generate(clean, 1, do_sample=False).shape == (3, LENGTH + 1)


def test_temperature_divides_log_probabilities(constructed):
    model, prompt = constructed.model, constructed.clean[:1]
    squared = model(prompt, last_only=True)[0].detach() ** 2
    many = prompt.expand(DRAWS, -1)
    drawn = model.generate(many, max_new_tokens=1, temperature=0.5, seed=0)[:, -1]
    assert_drawn_from(drawn, squared / squared.sum())


def test_greedy_tokens_are_the_most_likely_ones(speaker, clean):
    prompt = clean[:, :2]
    expected = prompt
    for _ in range(3):
        best = speaker(expected, last_only=True).argmax(-1, keepdim=True)
        expected = torch.cat([expected, best], dim=1)
    for options in ({"do_sample": False}, {"temperature": 0.0}, {"top_k": 1}):
        assert torch.equal(speaker.generate(prompt, 3, **options), expected)


def test_top_p_keeps_the_most_likely_tokens(constructed):
    model, prompt = constructed.model, constructed.clean[:1]
    distribution = model(prompt, last_only=True)[0].detach()
    first, second, third = distribution.argsort(descending=True).tolist()
    limit = (distribution[first] + distribution[second]).item() - 1e-6
    many = prompt.expand(DRAWS, -1)
    drawn = model.generate(many, max_new_tokens=1, top_p=limit, seed=0)[:, -1]
    kept = distribution.clone()
    kept[third] = 0
    assert_drawn_from(drawn, kept / kept.sum())


def test_a_seed_repeats_the_draws_and_leaves_the_generator_alone(speaker, clean):
    torch.manual_seed(3)
    expected_next = torch.rand(1)
    torch.manual_seed(3)
    first = speaker.generate(clean, 8, seed=1)
    assert torch.equal(torch.rand(1), expected_next)
    assert torch.equal(speaker.generate(clean, 8, seed=1), first)
    assert not torch.equal(speaker.generate(clean, 8, seed=2), first)


def test_each_token_is_predicted_from_the_last_tokens_that_fit(speaker, clean):
    longer = speaker.generate(clean, 4, do_sample=False)
    assert longer.shape == (3, LENGTH + 4)
    for end in range(LENGTH, LENGTH + 4):
        window = longer[:, end - LENGTH : end]
        assert torch.equal(longer[:, end], speaker(window, last_only=True).argmax(-1))


def test_a_construction_continues_sequences_of_its_length_only(constructed):
    model, tokens = constructed.model, constructed.clean[:2]
    assert model.generate(tokens, 3, seed=0).shape == (2, tokens.shape[1] + 3)
    with pytest.raises(ValueError, match="exact only at length 8, got 7"):
        model.generate(tokens[:, 1:], 3)


def test_text_continues_as_text(speaker):
    text = speaker.generate("0 2", 3, seed=0)
    tokens = speaker.generate(torch.tensor([[0, 2]]), 3, seed=0)
    assert text == speaker.to_string(tokens[0])
    assert speaker.generate(["0 2", "1 1"], 1, do_sample=False)[0].startswith("0 2 ")
    assert torch.equal(speaker.generate("0 2", 3, seed=0, return_type="tokens"), tokens)
    assert speaker.generate(torch.tensor([[0, 2]]), 3, seed=0, return_type="str") == [text]
    assert speaker.generate("0 2", 0) == "0 2"


def test_there_must_be_something_to_continue(model):
    with pytest.raises(ValueError, match=r"tokens: expected a length in 1\.\.5, got 0"):
        model.generate("", 1)


def test_a_model_of_a_chain_generates_the_chain():
    """With one lag the construction predicts π[last token], so generated text is that chain."""
    task = MTDTask.random(vocab_size=VOCAB, order=1, seed=0)
    model = one_step(task.transition, 1, LENGTH, beta=1.0)
    prompt = task.sample(200, LENGTH, seed=1).tokens
    tokens = model.generate(prompt, 40, seed=0)[:, LENGTH - 1 :]
    for token in range(VOCAB):
        followers = tokens[:, 1:][tokens[:, :-1] == token]
        assert_drawn_from(followers, task.transition[token])
