"""Shared set-up: Hypothesis profiles and the golden cases.

The default profile replays the same examples on every run; HYPOTHESIS_PROFILE=explore looks for new
ones.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from mtdinterp import providers, registry

settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Tests run side by side, one process a core: a second thread in each would only make them wait for
# each other.
torch.set_num_threads(1)

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden_cases.json").read_text())


@pytest.fixture
def clean_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations and loaded plugin files of a test end with it."""
    for found in (*registry.BY_KIND.values(), registry.IMPLEMENTATIONS):
        len(found)  # loads the built-ins, which must stay
        monkeypatch.setattr(found, "_items", dict(found._items))
        monkeypatch.setattr(found, "_providers", dict(found._providers))
    monkeypatch.setattr(providers, "_files", {})


def _name(case: dict) -> str:
    return f"q{case['vocab_size']}-m{case['order']}-T{case['length']}"


@pytest.fixture(params=GOLDEN, ids=_name)
def golden(request: pytest.FixtureRequest) -> dict:
    """One case with known answers, computed once by an independent implementation."""
    return request.param
