"""Interchanges: the numbers by hand, and what a result says about itself."""

import math
from dataclasses import replace
from importlib import import_module
from statistics import fmean

import pytest
import torch

from mtdinterp import explain
from mtdinterp.claims import Status
from mtdinterp.construction import one_step
from mtdinterp.criteria import BEYOND_CONTROLS, USED_R2
from mtdinterp.interventions import Interchange, interchange
from mtdinterp.interventions.interchange import (
    _best_of,
    _half_of,
    _r2_stderr,
    interchange_blocks,
)
from mtdinterp.interventions.reporting import unknown_constants
from mtdinterp.interventions.sites import (
    WRITES,
    Site,
    candidate_sites,
)
from mtdinterp.interventions.subspaces import Learned
from mtdinterp.interventions.swaps import Swaps
from mtdinterp.metrics import r_squared
from mtdinterp.pages.blocks import Heading, Table, Text
from mtdinterp.tasks import MTDTask

LENGTH = 9
TASK = MTDTask.random(3, 2, seed=0)
BASE, SOURCE = (TASK.sample(8, LENGTH, seed=seed).tokens for seed in (1, 2))
MODEL = one_step(TASK.transition, 2, LENGTH, 8.0)


@pytest.fixture(scope="module")
def explanation():
    return explain(MODEL, TASK, n_sequences=64)


@pytest.fixture(scope="module")
def result(explanation):
    return Interchange(
        variable="mean_responsibilities",
        symbol="Γ",
        site="the site",
        r2=0.95,
        r2_stderr=0.01,
        kl=2e-3,
        control_r2=0.1,
        mismatched_r2=0.2,
        mean_r2=0.3,
        sites={"the site": 0.94, "another": 0.5},
        n_choosing=4,
        control_seed=0,
        explanation=replace(explanation, fitted=True, identified=True, at_bound=()),
        n_sequences=4,
        seed=None,
    )


def test_the_best_site_is_the_first_within_rounding():
    sites = [Site(WRITES, layer, True) for layer in range(3)]
    assert _best_of(dict(zip(sites, (0.501, 0.504, 0.2), strict=True))) is sites[0]
    assert _best_of(dict(zip(sites, (0.50, 0.52, 0.51), strict=True))) is sites[1]


@pytest.mark.parametrize("n_steps", [1, 2, 7])
def test_half_of_the_steps_in_order(n_steps):
    drawn = [_half_of(n_steps, torch.Generator().manual_seed(seed)).tolist() for seed in range(20)]
    for steps in drawn:
        assert steps == sorted(set(steps))
        assert len(steps) == max(1, n_steps // 2)
        assert set(steps) <= set(range(n_steps))
    assert set().union(*drawn) == set(range(n_steps))


def test_the_numbers_of_an_interchange_by_hand(explanation):
    """γ is swapped at half of the steps, chosen on half of the pairs and judged on the others."""
    for variable in ("responsibilities", "weights"):
        found = interchange(MODEL, TASK, BASE, SOURCE, variable, seed=5, explanation=explanation)
        generator = torch.Generator().manual_seed(5)
        steps = _half_of(LENGTH - TASK.warm_up, generator)
        positions = (steps + TASK.warm_up).tolist()
        swaps = Swaps(MODEL, BASE, SOURCE, positions, generator)
        algorithm, constants = explanation.algorithm, explanation.constants
        base, source = TASK.evidence(BASE), TASK.evidence(SOURCE)
        own = algorithm.run(base, None, **constants)
        value = algorithm.run(source, None, **constants)[variable]
        if variable == "responsibilities":
            mixed = own[variable].clone()
            mixed[:, steps] = value[:, steps]
            value = mixed
        after = algorithm.run(base, {variable: value}, **constants)
        expected = base.predict(after["weights"]) - base.predict(own["weights"])
        for site in candidate_sites(MODEL, explanation, algorithm.variable(variable)):
            moved = swaps.swap(site)
            assert found.sites[site.name] == pytest.approx(r_squared(moved[:4], expected[:4]))
            if site.name == found.site:
                judged = r_squared(moved[4:], expected[4:])
                assert found.r2 == pytest.approx(judged)
                assert found.r2_stderr == pytest.approx(_r2_stderr(moved[4:], expected[4:]))
                mismatched = r_squared(swaps.swap_mismatched(site)[4:], expected[4:])
                assert found.mismatched_r2 == pytest.approx(mismatched)
                mean = r_squared(swaps.swap_mean(site)[4:], expected[4:])
                assert found.mean_r2 == pytest.approx(mean)
                controls = [r_squared(moved[4:], expected[4:]) for moved in swaps.swap_random(site)]
                assert found.control_r2 == pytest.approx(fmean(controls))
        assert (found.n_choosing, found.n_sequences, found.control_seed) == (4, 4, 5)
        assert found.symbol == algorithm.variable(variable).symbol
        assert found.identified == explanation.identified
        assert found.learned is None


def test_interchange_checks_its_pairs(explanation):
    assert interchange(MODEL, TASK, BASE[:4], SOURCE[:4], explanation=explanation).n_sequences == 2
    for base, source in ((BASE[:3], SOURCE), (BASE, SOURCE[:3])):
        with pytest.raises(ValueError, match="tokens: expected at least 4 sequences, got 3"):
            interchange(MODEL, TASK, base, source, explanation=explanation)
    with pytest.raises(
        ValueError, match=r"source: expected the base tokens' shape \[8, 9\], got \[5, 9\]"
    ):
        interchange(MODEL, TASK, BASE, SOURCE[:5], explanation=explanation)


def test_the_summary_of_an_interchange(result):
    assert result.summary() == (
        "mean_responsibilities: swapping the site moves the prediction as in the algorithm, with "
        "R² 0.950 ± 0.010 (random site 0.10, another source 0.20, mean 0.30), KL 2.00e-03, "
        "4 pairs.\n  Other sites: another 0.50."
    )
    learned = replace(result, learned=Learned(2, 0.9, 0.1), sites={"the site": 0.94})
    assert learned.summary().split("\n")[1:] == [
        "  A learned subspace of rank 2: R² 0.900 on new pairs (control 0.100)."
    ]
    doubtful = replace(result.explanation, identified=False, no_implementation="None is known.")
    lines = replace(result, explanation=doubtful).summary().split("\n")
    assert lines[2] == "  No named block was tried. None is known."
    assert lines[3] == (
        "  This is inconclusive, because the model's predictions only partly determine the "
        "constants of the algorithm."
    )
    below = replace(result, r2=-1.01).summary()
    assert "R² below -1 (random site" in below
    assert "R² -1.000 ± 0.010 (" in replace(result, r2=-1.0).summary()


def test_the_table_of_interchanges(result):
    heading, table = interchange_blocks([result])
    assert result.blocks() == [heading, table]
    assert heading == Heading("Interchange")
    header = ("variable", "best site", "R²", "random site", "another source", "the site's mean")
    row = ("mean responsibilities", "the site", "0.950 ± 0.010", "0.100", "0.200", "0.300", "4")
    assert table == Table((*header, "pairs"), (row,))
    doubtful = replace(result.explanation, identified=False, no_implementation="None is known.")
    *_, note = interchange_blocks([replace(result, explanation=doubtful), result])
    assert note == Text(
        (
            "None is known.",
            "These rows are inconclusive, because the model's predictions only partly determine "
            "the constants of the algorithm.",
        ),
        "soft",
    )


def test_the_claim_of_an_interchange(result):
    (claim,) = result.claims()
    assert claim.status is Status.HOLDS
    assert claim.claim == (
        "Swapping the site moves the predictions as swapping Γ does in the algorithm"
    )
    assert claim.evidence == "R² of the interchange"
    assert claim.number == "0.950 ± 0.010"
    assert claim.threshold == "R² ≥ 0.9, and 0.2 above every control"
    assert claim.control == "random site 0.10, another source 0.20, the site's mean 0.30"


@pytest.mark.parametrize("control", ["control_r2", "mismatched_r2", "mean_r2"])
def test_an_interchange_must_beat_every_control(result, control, monkeypatch):
    assert BEYOND_CONTROLS == 0.2
    # The package has a function of the same name as the module.
    module = import_module("mtdinterp.interventions.interchange")
    monkeypatch.setattr(module, "BEYOND_CONTROLS", 0.25)  # so that 1 - 0.75 is exactly it
    low = {"control_r2": -1.0, "mismatched_r2": -1.0, "mean_r2": -1.0}
    for number, status in ((0.75, Status.HOLDS), (0.751, Status.FAILS)):
        controls = low | {control: number}
        assert replace(result, r2=1.0, **controls).claims()[0].status is status
    without = replace(result, control_r2=math.nan)
    assert without.claims()[0].status is Status.HOLDS
    assert replace(result, r2=USED_R2, **low).claims()[0].status is Status.HOLDS
    assert replace(result, r2=USED_R2 - 1e-9, **low).claims()[0].status is Status.FAILS


def test_why_constants_are_unknown(explanation):
    known = replace(explanation, fitted=True, identified=True, at_bound=())
    assert unknown_constants(known) == ""
    partly = unknown_constants(replace(known, identified=False))
    assert partly == (
        "the model's predictions only partly determine the constants of the algorithm"
    )
    bound = replace(known, identified=False, at_bound=("beta", "beta_first"))
    assert unknown_constants(bound) == "the fit of beta, beta_first ended at the bound of its range"
    poor = unknown_constants(replace(bound, fitted=False, explained=0.25))
    assert poor == (
        "the algorithm explains 25% of how the predictions differ from those of uniform weights "
        "(needed: 50%), so its constants are not the model's"
    )


def test_the_standard_error_of_r2_needs_a_movement():
    nothing = torch.zeros(8, 3, dtype=torch.float64)
    assert math.isnan(_r2_stderr(nothing, nothing))
    small = torch.full((8, 3), 1e-3, dtype=torch.float64)  # a mean square of 3e-6
    assert _r2_stderr(0.5 * small, small) == pytest.approx(0, abs=1e-9)
