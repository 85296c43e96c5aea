"""Whatever is in a file, a request or a command line, the answer is a result or one sentence.

No traceback, no hang over 5 s, no more than 1 GB, and nothing in the input is executed.
"""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings

from fuzzing.corpus import past_failures
from fuzzing.outcomes import DEFECT
from fuzzing.strategies import READERS, SHARES

N_CASES = int(os.environ.get("MTDINTERP_FUZZ_CASES", "1000"))
"""Cases of all readers together."""
N_ALL_CASES = 20_000


def check(worker, reader, n_cases):
    """Draw and read cases of one reader; the first defect is shrunk and shown."""

    @settings(max_examples=n_cases, suppress_health_check=list(HealthCheck))
    @given(READERS[reader](worker.outline))
    def read(case):
        outcome = worker.run(reader, case)
        line = json.dumps({"was": outcome.detail, "case": case, "expect": "refused"})
        assert outcome.kind != DEFECT, f"{outcome.detail}\nfor corpus/{reader}.jsonl: {line}"

    read()


def replays():
    """The past failures as parameters of a test."""
    found = []
    for entry in past_failures():
        marks = [pytest.mark.slow] if entry.get("slow") else []
        name = f"{entry['reader']}: {entry['was']}"[:80]
        found.append(pytest.param(entry, id=name, marks=marks))
    return found


@pytest.mark.parametrize("entry", replays())
def test_a_past_failure_stays_mended(worker, entry):
    outcome = worker.run(entry["reader"], entry["case"])
    assert outcome.kind == entry["expect"], outcome.detail


@pytest.mark.parametrize("reader", READERS)
def test_damaged_input_is_accepted_or_refused_in_one_sentence(worker, reader):
    check(worker, reader, round(N_CASES * SHARES[reader]))


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_many_damaged_inputs_are_accepted_or_refused_in_one_sentence(worker, reader):
    check(worker, reader, round(N_ALL_CASES * SHARES[reader]))


def test_the_shares_of_the_readers_add_up():
    assert SHARES.keys() == READERS.keys()
    assert sum(SHARES.values()) == pytest.approx(1)
