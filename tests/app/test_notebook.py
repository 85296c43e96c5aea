"""The same views without a page."""

import re

import pytest
import torch

from mtdinterp.app.words import describe_extra
from mtdinterp.interventions import Edit, FromRun, Noise, Share, patch, patch_sweep
from mtdinterp.notebook import look, sweep


def test_a_look_shows_the_librarys_numbers(checkpoint):
    data = checkpoint.task.sample(2, 64, seed=3)
    tokens, source = data.tokens[:1], data.tokens[1:]
    edits = [
        Edit("pattern", FromRun(source), layer=1, position=-1),
        Edit("z", "zero", layer=0, position=5),
    ]
    found = look(checkpoint, tokens[0], edits=edits, weights=data.weights[0], source=source)
    expected = patch(checkpoint.model, tokens, edits)
    assert found.numbers.change == pytest.approx(expected.kl.item(), abs=1e-9)
    assert found.numbers.weights["truth"][:-1] == pytest.approx(data.weights[0].tolist())
    html = found._repr_html_()
    assert "Layer 2: attention, query 63 ← source sequence" in html
    assert "Layer 1: head outputs, position 5 ← zero" in html
    assert f"{expected.kl.item():.5f}" in html
    assert html.count("<img") == 12
    assert "http" not in html
    assert "<script" not in html


def test_a_look_without_tokens_draws_some_and_knows_their_weights(checkpoint):
    found = look(checkpoint, seed=4)
    assert found.numbers.judge == "truth"
    assert found.numbers.change == 0
    assert look(checkpoint, [0, 1, 2, 3, 4, 0, 1]).numbers.judge == "exact_bayes"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            Edit("pattern", Share(0.5, keys=slice(3, 6)), layer=-1, position=[1, 5]),
            "Layer 3: attention, query 1, 5, key 3–5 ← share 0.5",
        ),
        (
            Edit(
                "blocks.1.hook_resid_pre",
                torch.arange(4.0),
                block="L2.L1.lag",
                position=slice(-4, None),
            ),
            "Layer 2: stream before the layer, block L2.L1.lag, position 60–63 ← 0 1 2 3",
        ),
        (
            Edit("v", Noise(2.0), layer=0, head=0),
            "Layer 1: values, head 1 ← itself plus noise with 2 times its standard deviation",
        ),
        (
            Edit("z", lambda value: -value, layer=0),
            "Layer 1: head outputs ← a function of its value",
        ),
        (Edit("pattern", 0.25, layer=1, key=2), "Layer 2: attention, key 2 ← 0.25"),
    ],
)
def test_edits_of_the_library_are_said_in_the_words_of_the_page(checkpoint, edit, words):
    assert describe_extra(look(checkpoint).scene, edit) == words


def test_bars_below_zero_are_drawn(checkpoint):
    html = look(
        checkpoint, edits=[Edit("pattern", -0.5, layer=2, position=-1, key=63)]
    )._repr_html_()
    below = re.search(r'height="([\d.]+)"[^>]*><title>model, edited, lag 1: -0.5000', html)
    assert below
    assert float(below[1]) > 20
    assert ">-0.4</text>" in html


def test_a_sweep_is_the_librarys(checkpoint):
    tokens, source = (checkpoint.task.sample(1, 20, seed=seed).tokens for seed in (1, 2))
    found = sweep(checkpoint, tokens, source, "attn_out")
    assert torch.equal(
        found.result.values,
        patch_sweep(checkpoint.model, tokens, source, "attn_out", "noise").values,
    )
    assert found.result.summary() in found._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tokens": [9]}, "tokens: "),
        ({"tokens": [[0], [1]]}, "expected one sequence, got 2"),
        ({"tokens": [0, 1]}, "tokens: expected more than m = 4 tokens, got 2"),
        ({"position": 64}, "position: expected"),
        ({"tokens": [0, 1, 2, 3, 4, 9]}, "^tokens: expected values in 0..4"),
        (
            {"source": [0, 1, 2, 3, 4, 0]},
            "source: expected 64 tokens, as many as in the sequence; got 6",
        ),
    ],
)
def test_bad_input_is_said(checkpoint, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        look(checkpoint, **arguments)
