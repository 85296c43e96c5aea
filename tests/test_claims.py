"""Claims carry the numbers that decide them, and decide nothing where nothing can be decided."""

import re

import pytest
import torch

from mtdinterp.claims import Status
from mtdinterp.construction import one_step
from mtdinterp.pages.page import render
from mtdinterp.report import collect, judge
from mtdinterp.report.document import compose
from mtdinterp.tasks import MTDTask
from mtdinterp.tasks.lag_specific import LagSpecificMTDTask
from probes import identify_algorithm, recover_beta, recover_transition

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
