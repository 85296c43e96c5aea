"""Minimal circuits: the search against brute force, and what the result says about itself."""

import math
from dataclasses import replace

import pytest
import torch

from mtdinterp import explain
from mtdinterp.architectures import new_model
from mtdinterp.claims import Status
from mtdinterp.construction import one_step
from mtdinterp.criteria import FEW_EDGES, NO_GAP
from mtdinterp.interventions import Circuit, Edge, ablate_edges, minimal_circuit, patch_paths
from mtdinterp.interventions.circuit import _longest_prefix
from mtdinterp.interventions.edges import contributions, edges_of
from mtdinterp.metrics import kl_divergence, to_distribution
from mtdinterp.pages.blocks import Heading, Table, Text
from mtdinterp.tasks import MTDTask

TASK = MTDTask.random(3, 2, seed=0)
TOKENS = TASK.sample(16, 9, seed=1).tokens
SOME, OTHER, LAST = (
    Edge(1, "content", "token", "token"),
    Edge(2, "copy", "L1.lag"),
    Edge(0, "output", "L2.token"),
)


def random_model():
    """Two layers on three tokens, with weights large enough to attend unevenly."""
    torch.manual_seed(0)
    made = new_model("disentangled", 3, 9, d_rel=2, n_layers=2)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.eval()


def circuit(**changes):
    """A result whose numbers are easy to tell apart."""
    made = Circuit(
        edges=(SOME, LAST),
        constant=(OTHER,),
        n_edges=40,
        faithfulness=0.987,
        kl=2e-3,
        effects={SOME: 0.25, LAST: 0.5, OTHER: 0.125},
        wanted=0.95,
        kl_at_means=0.4,
        n_sequences=16,
        seed=None,
    )
    return replace(made, **changes)


def mean_kl(model, kept):
    """Mean KL(model ‖ model with these edges), by separate runs."""
    everything = ablate_edges(model, TOKENS, edges_of(model))
    found = ablate_edges(model, TOKENS, kept)
    return kl_divergence(to_distribution(everything), to_distribution(found)).mean().item()


@pytest.fixture(scope="module")
def searched():
    """A model, the circuit found in it, and the progress that was reported."""
    model = random_model()
    reports = []
    found = minimal_circuit(
        model, TOKENS, 0.9, progress=lambda done, total: reports.append((done, total))
    )
    return model, found, reports


def test_the_numbers_of_a_circuit_are_those_of_separate_runs(searched):
    model, found, _ = searched
    assert found.n_edges == len(edges_of(model))
    assert found.kl == pytest.approx(mean_kl(model, found.edges), abs=1e-12)
    assert found.kl_at_means == pytest.approx(mean_kl(model, ()), abs=1e-12)
    assert found.faithfulness == pytest.approx(1 - found.kl / found.kl_at_means, abs=1e-12)
    for edge, effect in list(found.effects.items())[::5]:
        others = [other for other in edges_of(model) if other != edge]
        assert effect == pytest.approx(mean_kl(model, others), abs=1e-12)
    assert found.wanted == 0.9
    assert found.n_sequences == 16
    assert found.algorithm is None
    assert math.isnan(found.algorithm_kl)


def test_a_circuit_is_as_faithful_as_wanted_and_smaller_than_the_model(searched):
    _, found, _ = searched
    assert found.kl <= (1 - 0.9) * found.kl_at_means
    assert 0 < len(found.edges) < len(found.effects)


def test_the_output_stands_after_all_layers(searched):
    _, found, _ = searched
    layers = [edge.layer or math.inf for edge in found.edges]
    assert layers == sorted(layers)
    assert layers[-1] == math.inf


def test_constant_and_silent_edges_are_told_apart(searched):
    model, found, _ = searched
    for edge, carried in contributions(model, TOKENS):
        varies = not torch.allclose(carried, carried[:1].expand_as(carried), atol=1e-12)
        assert (edge in found.effects) == varies
        assert (edge in found.constant) == (not varies and bool(carried.any()))
    assert found.constant == tuple(sorted(found.constant))
    assert Edge(1, "lag", "lag") in found.effects
    with torch.no_grad():
        model.attention[0].R_V.zero_()
    silenced = minimal_circuit(model, TOKENS, 0.9)
    assert Edge(1, "lag", "lag") not in {*silenced.effects, *silenced.constant}


def test_progress_counts_every_try_once(searched):
    _, found, reports = searched
    n_tries = 2 * len(found.effects)
    done = [count for count, _ in reports]
    assert {total for _, total in reports} == {n_tries}
    assert done[: len(found.effects)] == list(range(1, len(found.effects) + 1))
    assert done == sorted(set(done))
    assert done[-1] == n_tries
    # Each edge that is left after the first cut is tried once more, and reported.
    assert done[len(found.effects) :] == list(range(done[len(found.effects)], n_tries + 1))


@pytest.mark.parametrize("count", range(6))
def test_the_longest_prefix_is_that_of_a_search_one_by_one(count):
    for first_failure in range(1, count + 2):
        found = _longest_prefix(count, lambda n, limit=first_failure: n < limit)
        assert found == max(n for n in range(count + 1) if n < first_failure)
    # Cutting nothing needs no test, which rounding could fail.
    assert _longest_prefix(count, lambda n: False) == 0


def test_a_share_is_asked_for_from_0_to_1():
    for share in (-0.1, 1.1):
        with pytest.raises(ValueError, match=rf"faithfulness: expected a share .* got {share}"):
            minimal_circuit(random_model(), TOKENS, share)
    assert minimal_circuit(random_model(), TOKENS, 0).faithfulness >= 0


def test_exactly_eight_different_sequences_are_enough():
    different = TOKENS.unique(dim=0)
    assert len(different) >= 8
    assert minimal_circuit(random_model(), different[:8], 0.5).n_sequences == 8
    with pytest.raises(ValueError, match="at least 8 different sequences for the means, got 7"):
        minimal_circuit(random_model(), different[:7], 0.5)


def test_patched_edges_carry_what_they_carry_on_the_source():
    model = random_model()
    source = TASK.sample(16, 9, seed=2).tokens
    edges = edges_of(model)
    own = patch_paths(model, TOKENS, TOKENS, edges)
    assert torch.allclose(own, model(TOKENS)[:, -1].double(), atol=1e-5)
    taken = patch_paths(model, TOKENS, source, edges)
    assert torch.allclose(taken, model(source)[:, -1].double(), atol=1e-5)


def test_cut_outputs_are_their_means_over_the_sequences():
    model = random_model()
    kept = [edge for edge in edges_of(model) if edge.kind != "output"]
    mean = model(TOKENS)[:, -1].double().mean(0)
    assert torch.allclose(ablate_edges(model, TOKENS, kept), mean.expand(16, -1), atol=1e-5)


def test_the_summary_names_edges_effects_and_constants():
    assert circuit().summary().split("\n") == [
        "2 of 40 edges close 98.7% of the gap to the model's predictions (KL 2.00e-03):",
        "  L1: token·token                  KL 2.50e-01 if only this edge is cut",
        "  output: L2.token                 KL 5.00e-01 if only this edge is cut",
        "  constant edges: L2: copies L1.lag",
        "  The circuit alone has KL 2.0e-03 to the model's predictions.",
    ]
    assert "constant edges: none" in circuit(constant=()).summary()
    assert "edges close all of the gap" in circuit(faithfulness=math.nan).summary()


def test_the_blocks_of_a_circuit():
    heading, kept, caution, table = circuit().blocks()
    assert heading == Heading("Minimal circuit")
    assert kept.lines == (
        "2 of 40 edges close 98.7% of the KL gap between all edges at their means (KL 4.0e-01) "
        "and the model (16 sequences).",
        circuit().comparison(),
    )
    assert isinstance(caution, Text)
    assert caution.kind == "soft"
    assert "the remaining KL does" in caution.lines[0]
    rows = (("L1: token·token", "2.50e-01"), ("output: L2.token", "5.00e-01"))
    assert table == Table(("edge", "KL if only this edge is cut"), rows)


def test_the_comparison_with_an_algorithm():
    named = {"algorithm": "one step"}
    alone = "The circuit alone has KL 2.0e-03 to the model's predictions"
    assert circuit().comparison() == f"{alone}."
    assert circuit(**named).comparison() == f"{alone}."
    assert circuit(algorithm_kl=1e-3).comparison() == f"{alone}."
    assert circuit(**named, algorithm_kl=1e-3).comparison() == (
        f"{alone}; one step has 1.0e-03, so the circuit is 2 times as far away."
    )
    # A ratio to rounding error means nothing; one to the smallest real gap does.
    exact = circuit(**named, algorithm_kl=NO_GAP / 2).comparison()
    assert exact == f"{alone}; one step has 5.0e-07."
    assert "2e+03 times" in circuit(**named, algorithm_kl=NO_GAP).comparison()


def test_the_claim_of_a_circuit():
    (claim,) = circuit(algorithm="one step", algorithm_kl=1e-3).claims()
    assert claim.status is Status.HOLDS
    assert claim.evidence == "Edges in the smallest circuit found, and its KL to the model"
    assert claim.number == "2 of 40 edges, KL 2.0e-03"
    assert claim.threshold == "at most 10% of the edges"
    assert claim.control == "all edges at their means: KL 4.0e-01; one step: KL 1.0e-03"
    for unnamed in (circuit(algorithm="one step"), circuit(algorithm_kl=1e-3)):
        assert unnamed.claims()[0].control == "all edges at their means: KL 4.0e-01"


def test_the_claim_holds_up_to_its_threshold_and_without_a_gap_says_nothing():
    assert FEW_EDGES * 20 == 2
    assert circuit(n_edges=20).claims()[0].status is Status.HOLDS
    assert circuit(n_edges=19).claims()[0].status is Status.FAILS
    for gap in (NO_GAP, math.nan):
        (claim,) = circuit(kl_at_means=gap).claims()
        assert claim.status is Status.UNDECIDABLE
        assert "no edge is needed" in claim.reason
    assert circuit(kl_at_means=1.01 * NO_GAP).claims()[0].status is Status.HOLDS


def test_without_an_effect_no_faithfulness_is_defined():
    model = random_model()
    with torch.no_grad():
        model.W_U.zero_()
    found = minimal_circuit(model, TOKENS)
    assert found.kl_at_means == 0
    assert found.edges == ()
    assert math.isnan(found.faithfulness)


def test_the_algorithms_distance_is_measured_on_the_same_sequences():
    model = one_step(TASK.transition, 2, 9, 5.0)
    explanation = explain(model, TASK)
    far = replace(explanation, constants={"beta": 0.0})
    found = minimal_circuit(model, TOKENS, 0.5, explanation=far)
    evidence = TASK.evidence(TOKENS)
    uniform = evidence.divergence(model(TOKENS)[:, -1].double(), evidence.uniform).mean().item()
    assert found.algorithm == explanation.algorithm.label
    assert found.algorithm_kl == pytest.approx(uniform, rel=1e-4)


def test_edges_are_named_as_the_module_says():
    names = {str(edge) for edge in edges_of(random_model())}
    assert names >= {
        "L2: token·L1.lag",
        "L2: L1.lag·offset",
        "L2: copies L1.lag",
        "L2: writes lag",
        "output: L2.token",
    }
