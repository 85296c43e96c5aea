"""One judgement: what is said about a model follows from its evidence, and everywhere the same."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from architectures.toy_architecture import Positional
from probes_models import (
    embedded,
    follows_unlikely_lags,
    mirrored,
    two_heads,
    with_a_clipped_entry,
)

from mtdinterp import explain, load_checkpoint, registry, save_checkpoint
from mtdinterp.claims import Status
from mtdinterp.cli import main
from mtdinterp.construction import one_step, two_step
from mtdinterp.errors import OptimumAtEdge
from mtdinterp.estimators import tune_learning_rate
from mtdinterp.formatting import counted
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.plugins import register_architecture
from mtdinterp.registry import PROBES
from mtdinterp.report import Findings, collect, judge, write_report
from mtdinterp.report.collect import run_probe
from mtdinterp.report.document import compose
from mtdinterp.tasks import MTDTask
from mtdinterp.tasks.lag_specific import LagSpecificMTDTask

LENGTH = 24
JUDGED = ("identify_algorithm", "recover_transition", "recover_beta")
AT_BOUND = {"beta_first": 10.0, "sharpness": 500.0, "beta_mean": 5.0, "beta_reweighted": 15.0}
"""The fit of the sharpness stops at its bound, far below the construction's."""


def probed(model, task, names=JUDGED):
    """Findings of a few probes, without interventions."""
    explanation = explain(model, task, n_sequences=256)
    probes = {}
    for name in names:
        probes[name] = run_probe(
            PROBES[name], model, model, task, explanation, seed=0, n_sequences=256
        )
    return Findings("model", model, task, 0, explanation, probes=probes)


def answer(findings):
    return " ".join(judge(findings).sentences)


@pytest.fixture(scope="module")
def single(task):
    return one_step(task.transition, 3, LENGTH, 12.0)


@pytest.fixture(scope="module")
def five_layers(task):
    """Findings about a five-layer model whose predictions do not determine its constants."""
    model = two_step(task.transition, 3, LENGTH, **AT_BOUND, delta=2000.0)
    return collect(model, task)


@pytest.fixture(scope="module")
def near_checkpoint(tmp_path_factory, task, single):
    """A model that is near an estimator, but not near enough to be called that."""
    path = tmp_path_factory.mktemp("near") / "near"
    return save_checkpoint(path, follows_unlikely_lags(single), task)


# Several heads ------------------------------------------------------------------------------------


def test_two_heads_that_recover_the_matrix_fit_the_task():
    task = MTDTask.random(5, 3, seed=2)
    findings = probed(two_heads(task, LENGTH), task)
    verdict = judge(findings)
    assert findings.probes["recover_transition"].row_kl["behaviour"] < 0.003
    assert verdict.algorithm == "one_step"
    assert "does not fit" not in answer(findings)
    assert "layer 1 is read from head 2" in answer(findings)
    assert "Head 2 follows Γ best" in answer(findings)


# A matrix that one reading does not show ----------------------------------------------------------


def test_a_matrix_that_only_behaviour_shows_is_shown(task, single):
    """The read-out is in layer 3 of 4, so the tokens of the last layer say nothing about it."""
    findings = probed(embedded(single, n_layers=4), task)
    found = findings.probes["recover_transition"]
    assert found.trusted == "behaviour"
    assert found.total_variation["output"] > 0.1
    assert found.row_kl["behaviour"] < 1e-6
    assert "no transition matrix" not in found.summary() + answer(findings)
    assert judge(findings).algorithm == "one_step"


@pytest.mark.parametrize("below", [0.01, 0.02, 0.04])
def test_a_clipped_entry_does_not_change_the_verdict(task, single, below):
    whole = probed(single, task)
    clipped = probed(with_a_clipped_entry(single, below), task)
    found = clipped.probes["recover_transition"]
    assert found.output.min() < 1e-6  # clipped
    assert found.row_kl["output"] > 2 * found.row_kl_coarse["output"]  # the floor decides
    assert f"({found.row_kl_coarse['output']:.4f})" in found.summary()
    assert found.recovered("output")
    assert judge(clipped).algorithm == judge(whole).algorithm == "one_step"
    passed = [claim.passed for claim in found.claims()]
    assert passed == [claim.passed for claim in whole.probes["recover_transition"].claims()]


def test_the_floor_alone_cannot_make_a_task_not_fit(task, single):
    """Entries that are clipped away cost a row KL of any size, and hardly any total variation."""
    findings = probed(single, task)
    found = findings.probes["recover_transition"]
    kls = dict.fromkeys(found.row_kl, 10 * found.control_kl)
    findings.probes["recover_transition"] = replace(found, row_kl=kls)
    assert judge(findings).algorithm == "one_step"


# Signs --------------------------------------------------------------------------------------------


def test_a_step_against_the_likelihood_is_not_called_mirrored(task, single):
    findings = probed(follows_unlikely_lags(single), task)
    beta = findings.probes["recover_beta"]
    assert beta.gain < 0
    assert beta.attention < 0
    text = answer(findings)
    assert "opposite sign" not in text
    assert "the last layer does not undo this" in text
    assert "against the likelihood" in judge(findings).sentences[0]


def test_a_mirrored_model_reads_with_the_opposite_sign(task, single):
    findings = probed(mirrored(single), task)
    beta = findings.probes["recover_beta"]
    assert beta.gain < 0
    assert beta.attention > 0
    assert "the last layer reads them with the opposite sign (mirrored)" in answer(findings)


# Every place says the same ------------------------------------------------------------------------


def test_probe_report_and_comparison_say_the_same(tmp_path, capsys, near_checkpoint, construction):
    checkpoint = load_checkpoint(near_checkpoint)
    findings = collect(checkpoint)
    verdict = judge(findings)
    explained = findings.probes["identify_algorithm"].beyond_uniform
    assert 0.6 < explained < 0.9
    text = verdict.algorithm_text
    assert text.startswith("near one step of mirror descent")
    assert text.endswith("but not close")

    assert main(["probe", str(near_checkpoint), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdict"]["algorithm_text"] == text
    assert printed["verdict"]["sentences"][0] == verdict.sentences[0]
    assert main(["probe", str(near_checkpoint), "--probe", "identify_algorithm"]) == 0
    shown = capsys.readouterr().out
    assert "predicts like" not in shown
    assert shown.count(verdict.sentences[0]) == 2  # the probe's own summary, and the verdict

    page, numbers = write_report([findings], tmp_path / "report.html")
    written = json.loads(numbers.read_text())["verdict"]
    assert written["algorithm_text"] == text
    assert written["sentences"][0] == verdict.sentences[0]
    assert "predicts like" not in page.read_text()

    both = (findings, construction)
    table = compose(both, [judge(entry) for entry in both], "").sections[0].blocks[-2]
    assert table.rows[0][1] == text
    assert table.rows[1][1] == "one step of mirror descent"


def test_every_number_says_how_many_sequences_and_which_seed(tmp_path, capsys, near_checkpoint):
    assert main(["probe", str(near_checkpoint), "--json", "--seed", "3", "--sequences", "64"]) == 0
    printed = json.loads(capsys.readouterr().out)
    names = [name for name in PROBES if name in printed]
    assert len(names) >= 5
    for name in names:
        assert printed[name]["n_sequences"] == 64, name
        assert printed[name]["seed"] == 3, name


def test_every_claim_has_its_threshold_sequences_and_seed(tmp_path, five_layers):
    numbers = json.loads(write_report([five_layers], tmp_path / "report.html")[1].read_text())
    claims = numbers["verdict"]["claims"]
    assert len(claims) > 12
    for claim in claims:
        assert claim["threshold"], claim["claim"]
        assert claim["n_sequences"] > 0, claim["claim"]
        assert isinstance(claim["seed"], int), claim["claim"]
        assert bool(claim["reason"]) == (claim["status"] == "undecidable"), claim["claim"]


# Undecided claims and constants at a bound --------------------------------------------------------


@pytest.mark.parametrize("sharpness", [0.0, 500.0])
def test_everything_matches_only_if_everything_was_decided(task, five_layers, sharpness):
    """At sharpness 0 nothing distinguishes the model from a tuned one-step construction, and its
    other constants are undetermined."""
    findings = five_layers
    if sharpness == 0:
        model = two_step(task.transition, 3, LENGTH, 10.0, sharpness, 4.0, 4.17)
        findings = collect(model, task)
    verdict = judge(findings)
    by_status = {}
    for claim in verdict.claims:
        by_status.setdefault(claim.status, []).append(claim)
    assert by_status[Status.UNDECIDABLE]
    assert not any("Everything matches" in sentence for sentence in verdict.sentences)
    failed = len(by_status.get(Status.FAILS, []))
    tally = (
        f"{len(by_status[Status.HOLDS])} of {len(verdict.claims)} claims hold "
        f"(failed: {failed}, undecidable: {len(by_status[Status.UNDECIDABLE])})."
    )
    assert verdict.sentences[-1].startswith(tally)
    assert "Not computed: circuit" in verdict.sentences[-1]
    assert len(verdict.undecided) == len(by_status[Status.UNDECIDABLE])


def test_constants_at_a_bound_are_marked_and_decide_nothing(tmp_path, five_layers):
    assert five_layers.explanation.at_bound == ("sharpness",)
    found = five_layers.probes["identify_algorithm"]
    assert "sharpness" in found.at_bound["two_step_construction"]
    assert "(at the bound)" in found.constants_text("two_step_construction")
    page = write_report([five_layers], tmp_path / "report.html")[0].read_text()
    assert "150 (at the bound)" in page
    claims = {claim.claim: claim for claim in judge(five_layers).claims}
    for layer in (4, 5):  # these depend on the constants; the first layers do not
        claim = claims[f"Layer {layer}'s attention is within 0.1 of the reference construction's"]
        assert claim.status is Status.UNDECIDABLE
        assert "sharpness ended at the bound" in claim.reason
    assert (
        claims["Layer 1's attention is within 0.1 of the reference construction's"].passed is True
    )
    uses = [claim for text, claim in claims.items() if text.startswith("Swapping")]
    assert uses
    assert all(claim.status is Status.UNDECIDABLE for claim in uses)


def test_a_beta_at_its_bound_is_no_beta(task):
    """All weight on one lag: every large β predicts the same."""
    model = one_step(task.transition, 3, LENGTH, 1e5, delta=3e5)
    findings = probed(model, task)
    beta = findings.probes["recover_beta"]
    assert beta.output_at_bound
    assert "at the bound" in beta.summary()
    claim = next(claim for claim in beta.claims() if "output" in claim.claim)
    assert claim.status is Status.UNDECIDABLE
    assert "bound" in claim.reason


def test_one_page_shows_one_value_of_every_constant(five_layers):
    constants = five_layers.explanation.constants
    assert five_layers.probes["recover_beta"].two_step.constants._asdict() == constants
    assert five_layers.probes["compare_attention"].constants == constants
    assert five_layers.probes["decode_latents"].beta == constants["beta_first"]
    shown = five_layers.probes["identify_algorithm"].parameters
    assert shown["two_step_construction"] == constants
    assert shown["one_step"]["beta"] == five_layers.probes["recover_beta"].output
    assert five_layers.probes["recover_beta"].gain == five_layers.probes["recover_transition"].gain
    swaps = [entry for name, entry in five_layers.interventions.items() if "interchange" in name]
    assert len(swaps) == len(five_layers.explanation.algorithm.variables)
    for swap in swaps:
        assert swap.constants == constants


# What cannot be computed --------------------------------------------------------------------------


def test_an_optimum_at_the_edge_is_not_nothing_to_infer(task):
    steady = MTDTask(task.transition, 3, concentration=1e4)
    with pytest.raises(OptimumAtEdge):
        tune_learning_rate(steady, LENGTH)
    findings = probed(one_step(task.transition, 3, LENGTH, 12.0), steady)
    beta = findings.probes["recover_beta"]
    assert math.isnan(beta.optimal)
    assert not beta.nothing_to_infer
    assert "edge of the grid" in beta.summary()
    assert judge(findings).algorithm == "one_step"
    assert "nothing to infer" not in answer(findings)
    for claim in beta.claims():
        assert claim.status is Status.UNDECIDABLE
        assert "edge of the grid" in claim.reason


def test_with_one_lag_there_is_nothing_to_infer(task):
    findings = probed(one_step(task.transition, 1, LENGTH, 5.0), MTDTask(task.transition, 1))
    assert judge(findings).algorithm == "nothing_to_infer"
    assert judge(findings).sentences[0].startswith("There is nothing to infer on this task")


@pytest.mark.parametrize("n_layers", [2, 4, 7])
def test_depths_without_a_construction_are_said(tmp_path, n_layers):
    task = MTDTask.random(4, 2, seed=0)
    torch.manual_seed(0)
    config = DisentangledConfig(vocab_size=4, length=12, n_layers=n_layers, d_rel=1)
    findings = collect(DisentangledTransformer(config), task)
    depth = counted(n_layers, "layer")
    reason = f"No construction is known for {depth} of the disentangled architecture"
    assert findings.explanation.no_implementation.startswith(reason)
    assert judge(findings).algorithm == "none"
    assert reason in write_report([findings], tmp_path / "report.html")[0].read_text()
    for claim in findings.probes["compare_attention"].claims():
        assert claim.reason.startswith(reason)


@pytest.mark.parametrize("n_layers", [3, 5])
def test_a_task_without_one_matrix_is_judged_by_predictions(tmp_path, n_layers):
    task = LagSpecificMTDTask.random(4, 2, seed=0)
    torch.manual_seed(0)
    config = DisentangledConfig(vocab_size=4, length=12, n_layers=n_layers, d_rel=2)
    findings = collect(DisentangledTransformer(config), task)
    needs = "needs one transition matrix that all lags share"
    assert needs in findings.explanation.no_implementation
    assert needs in findings.not_computed["recover_transition"]
    assert judge(findings).algorithm == "none"
    page = write_report([findings], tmp_path / "report.html")[0].read_text()
    assert page.count(needs) >= 2
    assert "nan" not in re.sub("<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)


def test_a_third_architecture_is_not_taken_for_another():
    task = MTDTask.random(3, 2, seed=0)
    register_architecture(Positional)
    try:
        torch.manual_seed(0)
        model = registry.ARCHITECTURES["positional"].new_model(3, 12, n_layers=3)
        findings = collect(model, task)
        verdict = judge(findings)
    finally:
        registry.ARCHITECTURES.remove("positional")
    reason = "No construction is known for 3 layers of the positional architecture."
    assert findings.explanation.no_implementation == reason
    assert findings.explanation.reference() is None
    assert math.isnan(findings.probes["recover_beta"].weights)
    assert verdict.branch == "undecided"
