"""Claims carry the numbers that decide them, and decide nothing where nothing can be decided."""

import re

import pytest
import torch

from mtdinterp.claims import Status
from mtdinterp.construction import one_step, two_step
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.pages.page import render
from mtdinterp.report import collect, judge
from mtdinterp.report.document import compose
from mtdinterp.results import origin_of
from mtdinterp.tasks import MTDTask
from mtdinterp.tasks.lag_specific import LagSpecificMTDTask
from probes import compare_attention, identify_algorithm, recover_beta, recover_transition

LENGTH = 16
TASK = MTDTask.random(3, 2, seed=0)


@pytest.fixture(scope="module")
def model():
    return one_step(TASK.transition, 2, LENGTH, 8.0)


def test_claims_count_the_sequences_that_were_used(model):
    """Attention is read on at most 256 sequences, however many the probe draws."""
    attention, output = recover_beta(model, TASK, n_sequences=300).claims()
    assert (attention.n_sequences, output.n_sequences) == (256, 300)
    branch, scores, read_out, behaviour = recover_transition(model, TASK, n_sequences=300).claims()
    assert branch.n_sequences == scores.n_sequences == behaviour.n_sequences == 256
    assert read_out.n_sequences == 300
    found = identify_algorithm(model, TASK, names=["uniform", "one_step"], n_sequences=300)
    assert {claim.n_sequences for claim in found.claims()} == {150}


def test_no_matrix_is_recovered_where_all_rows_are_alike():
    """The control is π itself, and rounding would decide."""
    alike = MTDTask(torch.full((3, 3), 1 / 3), 2)
    model = one_step(alike.transition, 2, LENGTH, 8.0)
    for claim in recover_transition(model, alike, n_sequences=64).claims()[1:]:
        assert claim.status is Status.UNDECIDABLE
        assert claim.reason


class Unread(LagSpecificMTDTask):
    """Components that no single position shows."""

    name, label = "unread", "components without an offset"

    @property
    def read_offsets(self):
        return (None,) * self.order


def test_a_level_that_does_not_apply_says_why(model):
    found = recover_beta(model, Unread(TASK.matrices), n_sequences=64)
    reason = "this task has components that no single position shows"
    assert found.no_weights.startswith(reason)
    assert found.summary().count(f"does not apply: {reason}") == 2
    assert "—" not in found.summary()
    attention, _ = found.claims()
    assert attention.status is Status.UNDECIDABLE
    assert attention.reason.startswith(reason)
    notes = found.blocks()[-1].lines
    assert any(line.startswith(f"β by attention does not apply: {reason}") for line in notes)
    applies = recover_beta(model, TASK, n_sequences=64)
    assert (applies.no_weights, applies.no_attention) == ("", "")
    config = DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2, n_layers=1)
    shallow = recover_beta(DisentangledTransformer(config), TASK, n_sequences=64)
    assert shallow.no_weights.startswith("no construction is known for 1 layer")
    deeper = two_step(TASK.transition, 2, LENGTH, 8.0, 4.0, 4.0, 4.0)
    assert "three layers and one head" in recover_beta(deeper, TASK, n_sequences=64).no_weights


def test_attention_without_lags_says_why(model):
    found = compare_attention(model, Unread(TASK.matrices), n_sequences=64)
    assert "Mass on lags and correlation with γ do not apply" in found.summary()
    assert "do not apply" not in compare_attention(model, TASK, n_sequences=64).summary()


def test_the_origin_of_a_result_says_which_numbers_use_fewer_sequences(model):
    found = recover_beta(model, TASK, n_sequences=300)
    assert origin_of(found) == "300 sequences, seed 0; β by attention on 256 of them"
    few = recover_beta(model, TASK, n_sequences=64)
    assert origin_of(few) == "64 sequences, seed 0"
    names = ["uniform", "one_step"]
    named = identify_algorithm(model, TASK, names=names, n_sequences=64)
    assert origin_of(named) == "64 sequences, seed 0; divergences on 32 of them"
    matrix = recover_transition(model, TASK, n_sequences=300)
    assert origin_of(matrix).endswith("attention on 256 of them, behaviour on 256")


def test_pages_show_no_nan():
    """Neither where there is nothing to infer, nor on a task without offsets, nor side by side."""
    alike = MTDTask(torch.full((3, 3), 1 / 3), 2)
    unread = Unread(TASK.matrices)
    findings = [
        collect(one_step(alike.transition, 2, LENGTH, 8.0), alike),
        collect(one_step(TASK.transition, 2, LENGTH, 8.0), unread),
    ]
    verdicts = [judge(entry) for entry in findings]
    assert any(text.startswith("Its β is 8.00") for text in verdicts[1].sentences)
    page = render(compose(findings, verdicts, ""))
    body = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
    assert not re.search(r"\bnan\b", body, re.IGNORECASE)
