"""Steering: the formula by hand, and what a dose response says about itself."""

import math
from dataclasses import replace

import pytest
import torch

from mtdinterp.claims import Status
from mtdinterp.construction import one_step
from mtdinterp.criteria import USED_R2
from mtdinterp.errors import NotApplicable
from mtdinterp.interventions import (
    DoseResponse,
    dose_response,
    patch,
    steer_weights,
    steering_edit,
)
from mtdinterp.interventions import steering as steering_module
from mtdinterp.metrics import clip_to_distribution, kl_divergence, r_squared, total_variation
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.pages.blocks import Heading, Line, Lines, Text
from mtdinterp.tasks import MTDTask

TASK = MTDTask.random(3, 2, seed=0)
TOKENS = TASK.sample(16, 7, seed=1).tokens


def random_model(n_heads=(2, 1, 2)):
    torch.manual_seed(0)
    config = DisentangledConfig(vocab_size=3, length=7, d_rel=2, n_heads=n_heads)
    made = DisentangledTransformer(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def response(**changes):
    """A result whose numbers are easy to tell apart."""
    made = DoseResponse(
        doses=(0.0, 1.0),
        divergence=(1e-3, 2e-3),
        moved=(0.0, 0.25),
        expected=(0.0, 0.5),
        explained=0.95,
        weights=(0.25, 0.75),
        n_sequences=16,
        seed=None,
    )
    return replace(made, **changes)


def test_the_edit_mixes_a_row_at_the_given_offsets():
    own = torch.full((1, 1, 1, 4), 0.25)
    rows = {
        (1.0, None): [0, 0, 0.8, 0.2],
        (0.5, None): [0.125, 0.125, 0.525, 0.225],
        (0.0, None): [0.25] * 4,
        (1.0, (1, 3)): [0.8, 0, 0.2, 0],
    }
    for (dose, offsets), expected in rows.items():
        edit = steering_edit([0.2, 0.8], dose, offsets=offsets)
        assert edit.source(own).flatten().tolist() == pytest.approx(expected)
    assert (edit.hook, edit.position, edit.layer, edit.head) == ("pattern", -1, -1, None)
    assert steering_edit([1.0], layer=1).layer == 1
    whole = steering_edit([[0.2, 0.8], [1.0, 0.0]]).source(own.expand(2, -1, -1, -1))
    assert whole[1].flatten().tolist() == [0, 0, 0, 1]
    with pytest.raises(ValueError, match="dose: expected a number ≥ 0, got -1"):
        steering_edit([1.0], dose=-1)


def test_the_layer_and_the_dose_of_steering():
    model = random_model()
    weights = [0.25, 0.75]
    for layer in range(3):
        found = steer_weights(model, TOKENS, weights, 0.5, layer)
        edited = patch(model, TOKENS, [steering_edit(weights, 0.5, layer)])
        assert torch.equal(found, edited.after)
        assert not torch.allclose(found, edited.before)
    assert torch.equal(
        steer_weights(model, TOKENS, weights), steer_weights(model, TOKENS, weights, 1.0, 2)
    )
    moved = steer_weights(model, TOKENS, weights, offsets=[2, 4])
    assert torch.equal(moved, steer_weights(model, TOKENS, [0, 0, 0.25, 0, 0.75]))


def test_as_many_weights_as_positions_are_accepted_and_no_more():
    model = random_model()
    assert steer_weights(model, TOKENS, [1 / 7] * 7).shape == (16, 3)
    for wrong in ([1 / 8] * 8, [[0.5, 0.5]] * 15, [[[0.5, 0.5]]]):
        with pytest.raises(ValueError, match=r"weights: expected shape \[lag\] or \[16, lag\]"):
            steer_weights(model, TOKENS, wrong)


def test_a_dose_response_is_the_formula_by_hand():
    model = random_model()
    weights = torch.tensor([0.9, 0.1], dtype=torch.float64)
    found = dose_response(model, TASK, TOKENS, weights, doses=(1.0, 0.3))
    assert found.doses == (0.3, 1.0)
    assert found.weights == (0.9, 0.1)
    assert (found.n_heads, found.n_sequences) == (2, 16)
    unsteered = patch(model, TOKENS, [])
    own = unsteered.weights_before.double().mean(1)[:, :2]
    own = own / own.sum(-1, keepdim=True)
    evidence = TASK.evidence(TOKENS)
    start = clip_to_distribution(unsteered.before)[0]
    before = evidence.predict(own)
    for number, dose in enumerate(found.doses):
        edited = patch(model, TOKENS, [steering_edit(weights, dose)])
        output = clip_to_distribution(edited.after)[0]
        formula = evidence.predict((1 - dose) * own + dose * weights)
        kl = kl_divergence(formula, output).mean().item()
        assert found.divergence[number] == pytest.approx(kl)
        moved = total_variation(output, start).mean().item()
        assert found.moved[number] == pytest.approx(moved)
        expected = total_variation(formula, before).mean().item()
        assert found.expected[number] == pytest.approx(expected)
    assert found.explained == pytest.approx(r_squared(output - start, formula - before))


def test_the_usual_doses():
    model = one_step(TASK.transition, 2, 7, 5.0)
    found = dose_response(model, TASK, TOKENS, [1.0, 0.0])
    assert found.doses == (0, 0.25, 0.5, 0.75, 1)
    each = dose_response(model, TASK, TOKENS, torch.tensor([1.0, 0.0]).expand(16, 2))
    assert each.weights is None
    assert each.divergence == found.divergence


def test_the_weights_of_a_dose_response_have_one_entry_per_component():
    model = random_model()
    with pytest.raises(ValueError, match="weights: expected 2 entries in the last axis"):
        dose_response(model, TASK, TOKENS, [0.5, 0.25, 0.25])
    with pytest.raises(
        ValueError, match=r"weights: expected shape \[2\] or \[16, 2\], got \[3, 2\]"
    ):
        dose_response(model, TASK, TOKENS, [[0.5, 0.5]] * 3)


def test_components_without_an_offset_cannot_be_steered(monkeypatch):
    monkeypatch.setattr(steering_module, "lag_offsets", lambda task: None)
    with pytest.raises(NotApplicable, match="components that no single position shows"):
        dose_response(random_model(), TASK, TOKENS, [0.5, 0.5])


def test_the_summary_has_a_line_per_dose():
    assert response().summary().split("\n") == [
        "Steering the in-context weights:",
        "  dose 0     moved 0.000  KL to the formula 1.00e-03",
        "  dose 1     moved 0.250  KL to the formula 2.00e-03",
        "At the largest dose the formula explains 95.0% of the movement (16 sequences).",
    ]
    several = response(n_heads=2).summary()
    assert several.endswith("(16 sequences; the weights are written into all 2 heads).")


def test_the_claim_of_steering():
    (claim,) = response().claims()
    assert claim.status is Status.HOLDS
    assert claim.claim.startswith("Weights written into the last layer's attention move")
    words = "Steering to one lag: share of the movement that Σ_g w_g·rows[g] explains"
    assert claim.evidence == words
    assert (claim.number, claim.threshold) == ("95.0%", "≥ 90%")
    assert claim.control == "no movement 0%"
    assert claim.reason == ""
    assert response(explained=USED_R2).claims()[0].status is Status.HOLDS
    assert response(explained=USED_R2 - 1e-9).claims()[0].status is Status.FAILS
    (unknown,) = response(explained=math.nan, n_heads=2).claims()
    assert unknown.status is Status.UNDECIDABLE
    assert unknown.reason == "the formula does not move with these weights"
    assert unknown.evidence == f"{words}; the weights are written into all 2 heads"


def test_the_blocks_of_steering():
    heading, text, lines = response().blocks()
    assert heading == Heading("Steering")
    assert text == Text(("The formula explains 95.0% of how the prediction moves (16 sequences).",))
    assert lines == Lines(
        "Steering towards the weights (0.25, 0.75): how far the prediction moves",
        (
            Line("one_step", "the formula", ((0.0, 0.0), (1.0, 0.5))),
            Line("model", "this model", ((0.0, 0.0), (1.0, 0.25))),
        ),
        "dose: share of the attention that is replaced",
        "total variation",
    )
    _, text, lines = response(explained=math.nan, weights=None).blocks()
    sentence = "According to the formula, these weights should not move the prediction."
    assert text == Text((sentence,))
    assert lines.title == "Steering towards the given weights: how far the prediction moves"


def test_a_few_movements_of_rounding_size_are_none(monkeypatch):
    """The threshold is per sequence: 16 sequences may have 16 times its sum of squares."""
    model = one_step(TASK.transition, 2, 7, 5.0)
    found = dose_response(model, TASK, TOKENS, [1.0, 0.0])
    assert math.isfinite(found.explained)
    evidence = TASK.evidence(TOKENS)
    own = patch(model, TOKENS, []).weights_before.double().mean(1)[:, :2]
    own = own / own.sum(-1, keepdim=True)
    vertex = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(16, 2)
    moved = evidence.predict(vertex) - evidence.predict(own)
    mean_square = moved.square().sum(-1).mean().item()
    for share, known in ((0.99, True), (1.01, False)):
        monkeypatch.setattr(steering_module, "NOTHING_MOVES", share * mean_square)
        again = dose_response(model, TASK, TOKENS, [1.0, 0.0])
        assert math.isfinite(again.explained) == known
