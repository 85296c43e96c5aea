"""Sites and swaps: where a variable may be, and swaps and controls by hand."""

from dataclasses import replace

import pytest
import torch

from mtdinterp import explain
from mtdinterp.construction import one_step
from mtdinterp.interventions import Edit, FromRun, patch
from mtdinterp.interventions.sites import (
    ATTENTION,
    STREAM,
    WRITES,
    Site,
    _possible_layers,
    candidate_sites,
)
from mtdinterp.interventions.swaps import RANDOM_SITES, Swaps
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.registry import ALGORITHMS
from mtdinterp.tasks import MTDTask

LENGTH = 9
TASK = MTDTask.random(3, 2, seed=0)
BASE, SOURCE = (TASK.sample(8, LENGTH, seed=seed).tokens for seed in (1, 2))
MODEL = one_step(TASK.transition, 2, LENGTH, 8.0)


@pytest.fixture(scope="module")
def explanation():
    return explain(MODEL, TASK, n_sequences=64)


def random_model(n_heads=(2, 1, 3), n_layers=3):
    torch.manual_seed(0)
    config = DisentangledConfig(
        vocab_size=3, length=LENGTH, d_rel=2, n_layers=n_layers, n_heads=n_heads
    )
    made = DisentangledTransformer(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def swaps_of(model, positions=(3, 5)):
    return Swaps(model, BASE, SOURCE, positions, torch.Generator().manual_seed(0))


def test_a_swap_is_an_edit_from_the_source():
    model = random_model()
    swaps = swaps_of(model)
    cases = (
        (Site(STREAM, 1, False, block="L1.H1.lag"), {"position": [3, 5], "block": "L1.H1.lag"}),
        (Site(STREAM, 2, True, block="L2.lag"), {"position": -1, "block": "L2.lag"}),
        (Site(WRITES, 0, False), {"position": [3, 5]}),
        (Site(ATTENTION, 2, True, head=1), {"position": -1, "head": 1}),
        (Site(ATTENTION, 0, False), {"position": [3, 5]}),
    )
    for site, place in cases:
        edit = Edit(site.hook, FromRun(SOURCE), layer=site.layer, **place)
        found = patch(model, BASE, [edit])
        moved = (found.after - found.before).double()
        assert torch.allclose(swaps.swap(site), moved, atol=1e-6)
        assert moved.abs().max() > 1e-6


def test_the_controls_of_a_swap_by_hand():
    model = random_model()
    swaps = swaps_of(model)
    site = Site(STREAM, 2, True, block="L2.lag")
    name = "blocks.2.hook_resid_pre"
    values = model.run_with_cache(SOURCE)[1][name][:, -1:, model.stream["L2.lag"]]

    def moved(new):
        edit = Edit(name, new, position=[-1], block="L2.lag")
        found = patch(model, BASE, [edit])
        return (found.after - found.before).double()

    others = torch.cat([values[-1:], values[:-1]])
    assert torch.allclose(swaps.swap_mismatched(site), moved(others), atol=1e-6)
    mean = values.mean(0, keepdim=True).expand_as(values)
    assert torch.allclose(swaps.swap_mean(site), moved(mean), atol=1e-6)


def test_a_random_attention_is_that_of_every_other_layer():
    model = random_model()
    swaps = swaps_of(model)
    _, cache = model.run_with_cache(SOURCE)
    for site, places in (
        (Site(ATTENTION, 2, True), {}),
        (Site(ATTENTION, 2, True, head=1), {"head": 1}),
        (Site(ATTENTION, 0, True), {}),
    ):
        found = swaps.swap_random(site)
        others = [layer for layer in range(3) if layer != site.layer]
        assert len(found) == len(others)
        n_heads = 1 if site.head is not None else model.layers[site.layer].attn.n_heads
        for layer, movement in zip(others, found, strict=True):
            attention = cache[f"blocks.{layer}.attn.hook_pattern"][:, :, -1:]
            if attention.shape[1] != n_heads:
                attention = attention.mean(1, keepdim=True)
            edit = Edit("pattern", attention, position=[-1], layer=site.layer, **places)
            expected = patch(model, BASE, [edit])
            assert torch.allclose(movement, (expected.after - expected.before).double(), atol=1e-6)


@pytest.mark.parametrize("site", [Site(STREAM, 1, False, block="L1.H1.lag"), Site(WRITES, 1, True)])
def test_a_random_direction_moves_as_far_and_where_the_layer_is(site, monkeypatch):
    model = random_model()
    swaps = swaps_of(model)
    seen = []

    def recorded(run_model, tokens, edits):
        (edit,) = edits

        def source(own):
            new = edit.source(own)
            seen.append((own, new))
            return new

        return patch(run_model, tokens, [replace(edit, source=source)])

    monkeypatch.setattr("mtdinterp.interventions.swaps.patch", recorded)
    assert len(swaps.swap_random(site)) == RANDOM_SITES
    assert len(seen) == RANDOM_SITES
    name = f"blocks.{site.layer}.hook_{site.hook}"
    positions = [LENGTH - 1] if site.at_last else [3, 5]
    values = model.run_with_cache(SOURCE)[1][name][:, positions]
    layer = model.layers[site.layer]
    existing = layer.writes if site.block is None else layer.reads
    columns = existing if site.block is None else model.stream[site.block]
    inside = torch.zeros(model.cfg.d_model, dtype=torch.bool)
    inside[existing] = True
    n_existing = existing.stop - existing.start
    most = max(1, n_existing // 4)
    rank = min(columns.stop - columns.start, most)
    for own, new in seen:
        change = new - own
        wanted = (values - own)[..., columns].norm(dim=-1)
        assert torch.allclose(change.norm(dim=-1), wanted, atol=1e-4)
        assert not change[..., ~inside].abs().max() > 1e-6
        flat = change.flatten(0, -2).double()
        assert torch.linalg.matrix_rank(flat, rtol=1e-4) <= rank
    assert not torch.allclose(seen[0][1], seen[1][1])


def test_sites_in_words():
    assert Site(STREAM, 1, True, block="L1.lag").name == "L1.lag before layer 2"
    assert Site(WRITES, 0, True).name == "all that layer 1 writes"
    assert Site(ATTENTION, 2, True).name == "attention of layer 3"
    assert Site(ATTENTION, 2, True, head=0).name == "attention of layer 3, head 1"


def test_the_layers_that_can_hold_a_variable():
    one, two = ALGORITHMS["one_step"], ALGORITHMS["two_step_construction"]
    expected = {
        one: {"responsibilities": [0], "mean_responsibilities": [1, 2], "weights": [1, 2, 3]},
        two: {
            "responsibilities": [0],
            "mean_responsibilities": [1, 2],
            "first_weights": [2],
            "reweighted": [2],
            "weights": [1, 2, 3],
        },
    }
    for algorithm, layers in expected.items():
        for name, wanted in layers.items():
            assert list(_possible_layers(4, algorithm, algorithm.variable(name))) == wanted
    # A model may be too shallow for a variable.
    mean = one.variable("mean_responsibilities")
    for n_layers in (1, 2):
        assert list(_possible_layers(n_layers, one, mean)) == []


def test_the_candidates_of_the_construction_come_first(explanation):
    algorithm = explanation.algorithm
    names = {}
    for variable in algorithm.variables:
        found = candidate_sites(MODEL, explanation, variable)
        names[variable.name] = [site.name for site in found]
        assert all(site.at_last != variable.per_step for site in found)
    assert names == {
        "responsibilities": [
            *["L1.lag before layer 2", "attention of layer 1", "all that layer 1 writes"]
        ],
        "mean_responsibilities": ["L2.L1.lag before layer 3", "all that layer 2 writes"],
        "weights": ["attention of layer 2", "attention of layer 3"],
    }


def test_single_heads_come_before_all_heads(explanation):
    weights = explanation.algorithm.variable("weights")
    unnamed = replace(explanation, implementation=None)
    found = [site.name for site in candidate_sites(random_model(), unnamed, weights)]
    assert found == [
        "attention of layer 2",
        *[f"attention of layer 3, head {head}" for head in (1, 2, 3)],
        "attention of layer 3",
    ]
