"""Fixtures of the tests of sweeps."""

import pytest

from mtdinterp.training import evaluation


@pytest.fixture(autouse=True)
def few_sequences(monkeypatch):
    """Evaluate on few sequences in this process and in those forked from it, to save time."""
    monkeypatch.setattr(evaluation, "N_SEQUENCES", 256)
