"""The same views without a page."""

import pytest
import torch

from mtdinterp.interventions import Edit, FromRun, patch, patch_sweep
from mtdinterp.notebook import look, sweep


def test_a_look_shows_the_librarys_numbers(checkpoint):
    data = checkpoint.task.sample(2, 64, seed=3)
    tokens, source = data.tokens[:1], data.tokens[1:]
    edits = [Edit("pattern", FromRun(source), layer=1, position=-1), Edit("z", "zero", layer=0, position=5)]
    found = look(checkpoint, tokens[0], edits=edits, weights=data.weights[0], source=source)
    expected = patch(checkpoint.model, tokens, edits)
    assert found.numbers.change == pytest.approx(expected.kl.item(), abs=1e-9)
    assert found.numbers.weights["truth"][:-1] == pytest.approx(data.weights[0].tolist())
    html = found._repr_html_()
    assert "pattern, layer 1, position -1 ← FromRun" in html
    assert f"{expected.kl.item():.5f}" in html
    assert html.count("<img") == 12
    assert "http" not in html
    assert "<script" not in html


def test_a_look_without_tokens_draws_some_and_knows_their_weights(checkpoint):
    found = look(checkpoint, seed=4)
    assert found.numbers.judge == "truth"
    assert found.numbers.change == 0
    assert look(checkpoint, [0, 1, 2, 3, 4, 0, 1]).numbers.judge == "exact_bayes"


def test_a_sweep_is_the_librarys(checkpoint):
    tokens, source = (checkpoint.task.sample(1, 20, seed=seed).tokens for seed in (1, 2))
    found = sweep(checkpoint, tokens, source, "attn_out")
    assert torch.equal(found.result.values, patch_sweep(checkpoint.model, tokens, source, "attn_out", "noise").values)
    assert found.result.summary() in found._repr_html_()


@pytest.mark.parametrize(("arguments", "sentence"), [
    ({"tokens": [9]}, "tokens: "), ({"tokens": [[0], [1]]}, "expected one sequence, got 2"),
    ({"tokens": [0, 1]}, "order: expected less than the length 2"), ({"position": 64}, "position: expected"),
])
def test_bad_input_is_said(checkpoint, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        look(checkpoint, **arguments)
