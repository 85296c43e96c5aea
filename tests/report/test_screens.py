"""What a reader sees: few lines, bounded numbers, and the rule next to every word that decides."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch

from mtdinterp import save_checkpoint
from mtdinterp.cli import main
from mtdinterp.commands import report as report_command
from mtdinterp.construction import one_step
from mtdinterp.criteria import AGREE, CLEAR_R2, DEPENDS, NAMED, STOCHASTIC
from mtdinterp.metrics import Estimate
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.naming import Naming
from mtdinterp.pages.blocks import Bars, Text
from mtdinterp.registry import ESTIMATORS
from mtdinterp.report import collect, judge, write_report
from mtdinterp.report.collect import QUICK_SEQUENCES
from mtdinterp.report.document import answer_blocks, compose
from mtdinterp.report.judge import MOST_MISFITS
from mtdinterp.tasks import MTDTask
from probes import decode_latents, identify_algorithm, recover_beta, recover_transition

LENGTH = 16
FEW = 64


def untrained():
    torch.manual_seed(0)
    return DisentangledTransformer(DisentangledConfig(vocab_size=5, length=LENGTH, d_rel=3))


@pytest.fixture(scope="module")
def wrong(task):
    """Findings about an untrained model: nearly every claim fails."""
    return collect(untrained(), task, quick=True, n_sequences=FEW)


@pytest.fixture(scope="module")
def right(task):
    model = one_step(task.transition, 3, LENGTH, 8.0)
    return collect(model, task, quick=True, n_sequences=FEW)


def words(page):
    """The text of a page without its style and script."""
    return re.sub("<script.*?</script>|<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)


# What does not fit --------------------------------------------------------------------------------


def test_what_does_not_fit_is_a_few_lines_and_the_rest_is_folded(wrong):
    verdict = judge(wrong)
    failed = [claim for claim in verdict.claims if claim.passed is False]
    assert len(verdict.misfits) == len(failed) > MOST_MISFITS
    misfits = [block for block in answer_blocks(wrong, verdict) if block.kind == "misfit"]
    shown, folded = misfits
    assert not shown.folded
    # The heading says that these claims do not hold, so their lines need not.
    statements = tuple(line.removeprefix("Does not hold: ") for line in verdict.misfits)
    assert statements != verdict.misfits
    assert shown.lines[1:] == statements[:MOST_MISFITS]
    assert folded.lines == statements[MOST_MISFITS:]
    assert str(len(folded.lines)) in folded.folded


def test_a_terminal_counts_the_rest(wrong):
    verdict = judge(wrong)
    *listed, rest = verdict.short_misfits()
    assert listed == list(verdict.misfits[:MOST_MISFITS])
    assert rest.startswith(f"{len(verdict.misfits) - MOST_MISFITS} more claims do not hold")
    few = replace(verdict, misfits=verdict.misfits[:MOST_MISFITS])
    assert few.short_misfits() == few.misfits


def test_predictions_come_first_in_what_does_not_fit(wrong):
    first = judge(wrong).misfits[0]
    assert first.startswith("Does not hold: The model closes 80% of the KL gap")
    assert "less than 0%" in first


def test_no_negative_share_and_no_huge_r2_on_the_page(tmp_path, wrong):
    page, _ = write_report([wrong], tmp_path / "report.html")
    text = words(page.read_text())
    assert not re.search(r"[-−]\d[\d.]*\s?%", text)
    assert not re.search(r"R² [-−]\d{2}", text)


# The rule next to the word ------------------------------------------------------------------------


def test_the_sentence_that_names_says_what_naming_requires(right, wrong):
    assert f"(needed: {NAMED:.0%})" in judge(right).sentences[0]
    assert "(needed: " in judge(wrong).sentences[0]


def test_an_undecided_branch_says_its_r2_and_the_threshold(task):
    found = recover_transition(untrained(), task, n_sequences=FEW)
    assert f"R² is below {CLEAR_R2:g}" in found.summary()


def test_a_terminal_says_what_the_named_estimator_ties_with(right):
    found = replace(right.probes["identify_algorithm"], tied=("mirror_descent_2",))
    tied = replace(right, probes={**right.probes, "identify_algorithm": found})
    line = report_command.short_answer(judge(tied), tied)
    assert "do not distinguish it from 2 steps of mirror descent." in line
    assert line.endswith(f"Compared on {FEW // 2} sequences, seed 0.")


def test_weak_has_its_threshold_next_to_it(task):
    summary = decode_latents(untrained(), task, n_sequences=FEW).summary()
    assert len(re.findall(r"weak: below \d\.\d\d", summary)) == summary.count("selectivity ") - 1


def test_weak_is_explained_only_if_something_is_weak(task):
    found = decode_latents(untrained(), task, n_sequences=FEW)
    strong = {}
    for name, places in found.table.items():
        clear = {key: replace(one, r2=1.0, shuffled_r2=0.0) for key, one in places.items()}
        strong[name] = {key: replace(one, untrained_r2=0.0) for key, one in clear.items()}
    clear = replace(found, table=strong)
    for result, is_explained in ((found, True), (clear, False)):
        notes = [block for block in result.blocks() if isinstance(block, Text)]
        shown = result.summary() + " ".join(" ".join(block.lines) for block in notes)
        assert ("eak: selectivity below" in shown) is is_explained


def test_without_a_name_sentence_and_claims_speak_of_the_same_estimator(wrong):
    found = wrong.probes["identify_algorithm"]
    nearest = found.by_divergence()[0]
    simple = next(name for name in ("one_step", "uniform") if name != nearest)
    other = replace(found, best=simple)
    label = ESTIMATORS[nearest].label
    assert other.naming is Naming.NONE
    assert f"the nearest, {label}" in other.sentence()
    first, second, _ = other.claims()
    assert first.evidence.startswith(f"Share that {label}")
    assert second.evidence.startswith(f"Share that {label}")


def test_the_rule_that_names_an_estimator_stands_where_it_is_named(task):
    model = one_step(task.transition, 3, LENGTH, 8.0)
    found = identify_algorithm(model, task, n_sequences=FEW)
    # The estimator that is named is farther than the nearest, as can happen on few sequences.
    divergences = {"one_step": 1.75e-2, "exact_bayes": 1.71e-2}
    close = replace(found, shifted={"flat": divergences}, best_shifted={"flat": "one_step"})
    line = (
        "flat: one step of mirror descent (1.75e-02); the exact posterior mean is nearer "
        "(1.71e-02), but not distinguishably"
    )
    assert line in close.summary()
    assert "may fit equally well" in close.summary()
    assert "are distinguished if" in close.summary()
    rules = [block for block in close.blocks() if isinstance(block, Text)]
    assert any("may fit equally well" in " ".join(block.lines) for block in rules)
    row = close.blocks()[-1].rows[0]
    assert "the exact posterior mean (1.71e-02)" in row


def test_a_matrix_that_is_not_used_although_it_is_close_is_explained():
    """Rows of π that are nearly alike: predictions are right, and hardly depend on the token."""
    sharp = MTDTask.random(5, 2, seed=0).transition
    flat = MTDTask(0.9 * torch.full_like(sharp, 0.2) + 0.1 * sharp, 2)
    found = recover_transition(one_step(flat.transition, 2, LENGTH, 8.0), flat, n_sequences=FEW)
    assert found.trusted is None
    assert found.recovered("behaviour")
    sentence = found.trust_sentence()
    assert f"needed: above {DEPENDS:g}" in sentence
    assert "close to π nonetheless" in sentence


def test_outputs_that_are_not_distributions_are_distinguished_from_flat_ones(task):
    model = one_step(task.transition, 3, LENGTH, 8.0)
    with torch.no_grad():
        model.W_U.mul_(2)
    sentence = recover_transition(model, task, n_sequences=FEW).trust_sentence()
    assert "are not distributions" in sentence
    assert f"allowed: below {STOCHASTIC:g}" in sentence
    assert sentence.endswith("Clipped, they have a total variation of 0.000 from π.")


def test_readings_that_agree_say_how_closely(task):
    model = one_step(task.transition, 3, LENGTH, 8.0)
    found = recover_transition(model, task, n_sequences=FEW)
    assert f"within {AGREE:g} of it" in found.trust_sentence()


def test_a_distance_in_standard_errors_stands_next_to_the_claim(task):
    """A β 7 standard errors from the optimum may be within 10%: both are said."""
    model = one_step(task.transition, 3, LENGTH, 8.0)
    found = recover_beta(model, task, n_sequences=FEW)
    off = replace(found, attention=10.5, attention_stderr=0.05, optimal=10.0)
    claim = off.claims()[0]
    assert claim.passed is True
    assert claim.claim == "β read from the attention is within 10% of the optimum"
    assert "10.0 standard errors away" in claim.number


def test_titles_of_claims_that_compare_with_a_threshold_state_it(task):
    findings = collect(one_step(task.transition, 3, LENGTH, 8.0), task, n_sequences=FEW)
    with_threshold = re.compile(
        r"\d|follows Γ|Swapping|as the formula predicts|single out one "
        "estimator"
    )
    titles = [claim.claim for claim in findings.claims()]
    assert len(titles) > 15
    assert [title for title in titles if not with_threshold.search(title)] == []


# Quick reports ------------------------------------------------------------------------------------


def test_a_quick_report_leaves_out_the_slow_interventions_and_says_so(tmp_path, right):
    assert not [name for name in right.interventions if name.startswith("interchange")]
    assert not {"sweep", "circuit"} & set(right.interventions)
    assert {"steering", "transplant 1"} <= set(right.interventions)
    page, numbers = write_report([right], tmp_path / "report.html")
    text = words(page.read_text())
    assert "quick report" in text
    for part in right.left_out:
        assert part in text
    assert json.loads(numbers.read_text())["left_out"] == list(right.left_out)
    assert "Everything matches" not in text


def test_the_number_of_sequences_is_used_and_shown(right):
    assert right.scores.n_sequences == FEW
    assert right.explanation.n_sequences == FEW
    for result in right.probes.values():
        assert result.n_sequences == FEW
    assert {claim.n_sequences for claim in right.claims()} <= {FEW, FEW // 2, 128}


def test_a_quick_report_has_its_own_number_of_sequences(task):
    model = one_step(task.transition, 3, 12, 8.0)
    shown = []
    findings = collect(model, task, quick=True, stage=shown.append)
    assert findings.scores.n_sequences == QUICK_SEQUENCES
    assert shown[-1] == "steering and transplants"
    assert "interventions" not in shown


def test_the_command_has_both_flags(tmp_path, capsys, task):
    near = save_checkpoint(tmp_path / "near", one_step(task.transition, 3, 12, 8.0), task)
    out = tmp_path / "report.html"
    assert main(["report", str(near), "--quick", "--sequences", "48", "-o", str(out)]) == 0
    assert "Compared on 24 sequences, seed 0." in capsys.readouterr().out
    numbers = json.loads(out.with_suffix(".json").read_text())
    assert numbers["kl"]["n_sequences"] == 48
    assert numbers["command"].endswith("--quick --sequences 48")
    with pytest.raises(SystemExit):
        main(["report", str(near), "--sequences", "8"])
    assert "--sequences: expected an integer ≥ 32, got 8" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "is_said"), [(50.0, True), (math.nan, False)])
def test_the_chart_says_that_ratios_are_left_out_only_if_they_are_large(
    right, wrong, value, is_said
):
    scores = replace(wrong.scores, kl_ratio=Estimate(value, 0.1))
    pair = [right, replace(wrong, scores=scores)]
    document = compose(pair, [judge(entry) for entry in pair], "")
    (bars,) = [block for block in document.sections[0].blocks if isinstance(block, Bars)]
    assert len(bars.bars) == 1
    assert ("only in the table" in bars.unit) is is_said
