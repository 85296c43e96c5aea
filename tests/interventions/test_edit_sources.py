"""What edits put at their place: sources, and the sentences about wrong ones."""

import math
from inspect import unwrap

import numpy as np
import pytest
import torch
from edited_models import OTHER, TASK, TOKENS, concatenated, edited, with_random_weights

from mtdinterp.interventions import Edit, FromRun, MeanOver, Noise, Share, patch
from mtdinterp.interventions.edits import SMALLEST_SUM
from mtdinterp.interventions.hooking import activations
from mtdinterp.interventions.sources import _moved_rows, check_source
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
)


@pytest.fixture(scope="module")
def model():
    return concatenated()


def test_a_row_is_moved_with_its_offsets():
    rows = torch.arange(1.0, 5).expand(1, 1, 1, 4)  # of a query that sees keys 0..3
    later = _moved_rows(rows, torch.tensor([3]), 2, 0.0)
    assert later.tolist() == [[[[0, 1, 2, 3]]]]
    earlier = _moved_rows(rows, torch.tensor([1]), 3, -math.inf)
    assert earlier.tolist() == [[[[3, 4, -math.inf, -math.inf]]]]
    same = _moved_rows(rows, torch.tensor([3]), 3, 0.0)
    assert torch.equal(same, rows)


@pytest.mark.parametrize(("hook", "empty"), [("pattern", 0.0), ("attn_scores", -math.inf)])
def test_moved_scores_leave_out_what_the_source_does_not_reach(model, hook, empty):
    source = activations(model, OTHER, [f"blocks.0.attn.hook_{hook}"])
    rows = source[f"blocks.0.attn.hook_{hook}"][:, :, 2:4]
    found = edited(model, hook, FromRun(OTHER, position=2), layer=0, position=slice(4, 6))[
        :, :, 4:6
    ]
    assert torch.equal(found[..., 0, 2:5], rows[..., 0, :3])
    assert torch.equal(found[..., 1, 2:6], rows[..., 1, :4])
    assert (found[..., :2] == empty).all()
    assert (found[..., 0, 5:] == empty).all()
    assert (found[..., 1, 6:] == empty).all()


def test_a_source_position_must_leave_room(model):
    def moved(**places):
        return Edit("resid_pre", FromRun(OTHER, position=5), layer=1, **places)

    assert patch(model, TOKENS, [moved(position=[2, 3])]).after.isfinite().all()
    with pytest.raises(
        ValueError, match=r"^source position: 3 positions starting at 5 exceed the length 7$"
    ):
        patch(model, TOKENS, [moved(position=[2, 3, 4])])
    for scattered in (None, [3, 2], [2, 4], [2, 2]):
        with pytest.raises(ValueError, match=r"can only be written to consecutive positions"):
            patch(model, TOKENS, [moved(position=scattered)])
    wrong = Edit("resid_pre", FromRun(OTHER, position=7), layer=1, position=0)
    with pytest.raises(ValueError, match=r"source position: expected a position in 0\.\.6, got 7"):
        patch(model, TOKENS, [wrong])


def test_a_negative_source_position_counts_from_the_end(model):
    first = FromRun(OTHER, position=-1)
    second = FromRun(OTHER, position=6)
    found = [edited(model, "resid_pre", source, layer=1, position=3) for source in (first, second)]
    assert torch.equal(*found)


def test_each_source_is_run_once_and_told_apart(model, monkeypatch):
    runs = []

    def counting(run_model, tokens, names):
        runs.append(list(names))
        return activations(run_model, tokens, names)

    monkeypatch.setattr("mtdinterp.interventions.sources.activations", counting)
    edits = [
        Edit("z", FromRun(OTHER), layer=0),
        Edit("resid_pre", MeanOver(OTHER), layer=2),
        Edit("z", FromRun(TOKENS), layer=1),
        Edit("z", "zero", layer=1),
    ]
    patch(model, TOKENS, edits)
    assert runs == [["blocks.0.attn.hook_z", "blocks.2.hook_resid_pre"], ["blocks.1.attn.hook_z"]]


def test_a_hook_outside_the_layers_ignores_the_source_layer(model):
    by_layer = edited(model, "hook_embed", FromRun(OTHER, layer=1))
    assert torch.equal(by_layer, edited(model, "hook_embed", FromRun(OTHER)))


def test_the_source_model_must_have_the_hook_point(model):
    config = DisentangledConfig(vocab_size=3, length=7, n_layers=1, d_rel=2)
    single = DisentangledTransformer(config)
    edit = Edit("z", FromRun(OTHER, single), layer=2)
    with pytest.raises(ValueError, match="hook of the source's model: expected one of"):
        patch(model, TOKENS, [edit])


def test_sources_of_no_kind_are_named(model):
    with pytest.raises(ValueError, match=r"source: expected 'zero', a number, .* got dict"):
        unwrap(check_source)({})
    with pytest.raises(ValueError, match=r"source: expected real numbers, got torch.complex64"):
        check_source(torch.zeros(1, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"source: expected real numbers, got array"):
        check_source(np.array(["a"]))
    with pytest.raises(ValueError, match=r"^source: expected numbers, got NaN$"):
        check_source(torch.tensor([0.0, math.nan]))
    with pytest.raises(ValueError, match=r"scale: expected a number ≥ 0, got -1"):
        check_source(Noise(-1.0))
    for fine in ("zero", 0, 1.5, np.float64(2), torch.tensor(-math.inf), Noise(0.0), len):
        check_source(fine)


def test_one_position_may_be_given_without_its_axis(model):
    vector = torch.arange(model.cfg.d_model, dtype=torch.float32)
    rows = vector.expand(4, -1)
    for source in (vector, rows, rows[:, None]):
        found = edited(model, "hook_embed", source, position=2)
        assert torch.equal(found[:, 2], rows)
    head_rows = torch.full((4, 2, 7), 0.5)
    found = edited(model, "pattern", head_rows, layer=0, position=-1)
    assert torch.equal(found[:, :, -1], head_rows)
    with pytest.raises(
        ValueError, match=r"source: shape \[3, 1, 2\] does not match .* at hook_embed"
    ):
        edited(model, "hook_embed", torch.zeros(3, 2), position=2)


def test_noise_has_the_wanted_size_and_seed(model):
    config = DisentangledConfig(vocab_size=3, length=64, d_rel=8, n_layers=1)
    wide = with_random_weights(DisentangledTransformer(config))
    tokens = TASK.sample(64, 64, seed=1).tokens
    name = "blocks.0.attn.hook_z"
    own = activations(wide, tokens, [name])[name]
    seen = {}

    def noisy(noise):
        def remember(value):
            seen["value"] = value.clone()
            return value

        patch(wide, tokens, [Edit(name, noise), Edit(name, remember)])
        return (seen["value"] - own).double()

    added = noisy(Noise(0.5))
    deviation = own.std(unbiased=False).item()
    assert added.std().item() == pytest.approx(0.5 * deviation, rel=0.02)
    assert added.mean().item() == pytest.approx(0, abs=0.01 * deviation)
    assert torch.equal(added, noisy(Noise(0.5, seed=0)))
    assert not torch.equal(added, noisy(Noise(0.5, seed=1)))
    assert torch.allclose(noisy(Noise(seed=0)), 2 * added, atol=1e-5)


def test_noise_counts_all_values_of_a_small_place():
    config = DisentangledConfig(vocab_size=3, length=3, n_layers=1, d_rel=1)
    made = with_random_weights(DisentangledTransformer(config))
    tokens = torch.tensor([[0, 1, 2]])
    values = torch.tensor([1.0, 2, 4])
    place = {"layer": 0, "block": "token", "position": 1}
    seen = {}

    def remember(value):
        seen["value"] = value.clone()
        return value

    edits = [Edit("resid_pre", source, **place) for source in (values, Noise(seed=3), remember)]
    patch(made, tokens, edits)
    draws = torch.randn(1, 1, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    deviation = (14 / 9) ** 0.5  # of 1, 2 and 4 around 7/3, over three values
    assert torch.allclose(seen["value"], (values + deviation * draws).float(), atol=1e-6)


def test_a_share_keeps_proportions_and_the_sum():
    row = torch.tensor([[0.1, 0.3, 0.4, 0.2]])
    found = Share(0.8, keys=[0, 1])(row)
    assert torch.allclose(found, torch.tensor([[0.2, 0.6, 0.4 / 3, 0.2 / 3]]))
    assert torch.allclose(Share(0.8, keys=[0, 1])(3 * row), 3 * found)
    assert torch.allclose(Share(0.4, keys=slice(0, 2))(row), row)
    # However little attention there is, its proportions are kept.
    faint = torch.tensor([[1e-9, 3e-9, 1.0, 0.0]], dtype=torch.float64)
    assert Share(0.5, keys=[0, 1])(faint)[0, :2].tolist() == pytest.approx([0.125, 0.375])
    assert SMALLEST_SUM < 1e-9
