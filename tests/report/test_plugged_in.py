"""A new estimator and a new probe appear everywhere without an edit elsewhere."""

import argparse
import json
from dataclasses import dataclass

import pytest
import torch

from mtdinterp import catalogue
from mtdinterp.claims import Claim, decide
from mtdinterp.commands import probe as probe_command
from mtdinterp.construction import one_step
from mtdinterp.estimators.base import Estimator
from mtdinterp.plugins import RESERVED, register_estimator, register_probe
from mtdinterp.registry import ESTIMATORS, PROBES
from mtdinterp.report import collect, judge, write_report
from mtdinterp.report.document import own_blocks
from mtdinterp.results import Result

LENGTH = 16

FILE = '''
from mtdinterp.plugins import register_probe


@register_probe("count_layers", label="how many layers it has")
def count_layers(model, task):
    """Its depth."""
'''


class NewestLag(Estimator):
    """All weight on lag 1."""

    name, label = "newest_lag", "always the newest lag"

    def weights(self, evidence):
        found = torch.zeros_like(evidence.mean_responsibilities)
        found[:, 0] = 1
        return found


@dataclass(frozen=True, kw_only=True)
class Depth(Result):
    """How many layers a model has."""

    depth: int

    def summary(self):
        return f"The model has {self.depth} layers."

    def claims(self):
        claim = Claim(
            claim="The model has three layers",
            status=decide(self.depth == 3),
            evidence="Layers",
            number=str(self.depth),
            threshold="3",
            control="none",
            n_sequences=self.n_sequences,
            seed=self.seed,
        )
        return (claim,)


@pytest.fixture(scope="module")
def plugged_in(task):
    """Findings of the construction while both are registered."""
    register_estimator(NewestLag)

    @register_probe("measure_depth", label="how deep it is")
    def measure_depth(model, task, *, seed=0):
        return Depth(depth=len(model.blocks), n_sequences=1, seed=seed)

    yield collect(one_step(task.transition, 3, LENGTH, 8.0), task)
    PROBES.remove("measure_depth")
    ESTIMATORS.remove("newest_lag")


def test_a_new_estimator_is_compared_everywhere(tmp_path, plugged_in):
    assert "newest_lag" in plugged_in.probes["identify_algorithm"].divergences
    assert plugged_in.scores.estimators["newest_lag"].kl > plugged_in.scores.model.kl
    page, numbers = write_report([plugged_in], tmp_path / "report.html")
    written = json.loads(numbers.read_text())
    assert page.read_text().count("always the newest lag") >= 2  # held-out scores and the probe
    assert "newest_lag" in written["algorithm"]["divergences"]
    assert "newest_lag" in written["kl"]["estimators"]


def test_a_new_probe_has_its_section_claims_and_numbers(tmp_path, plugged_in):
    page, numbers = write_report([plugged_in], tmp_path / "report.html")
    text = page.read_text()
    assert "How deep it is</h2>" in text
    assert "The model has 3 layers." in text  # without blocks the summary is shown
    assert json.loads(numbers.read_text())["measure_depth"]["depth"] == 3
    (claim,) = [entry for entry in judge(plugged_in).claims if "three layers" in entry.claim]
    assert claim.passed is True


def test_no_probe_can_take_a_key_that_the_report_writes(tmp_path, plugged_in):
    one = write_report([plugged_in], tmp_path / "report.html")[1]
    two = write_report([plugged_in, plugged_in], tmp_path / "two.html")[1]
    keys = {*json.loads(one.read_text()), *json.loads(two.read_text())}
    assert keys - set(PROBES) <= RESERVED


def test_a_probe_file_is_listed_by_the_command_line(tmp_path, monkeypatch):
    package = tmp_path / "own_probes"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "count_layers.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    found = catalogue.built_in("own_probes", "register_probe")
    assert found == {"count_layers": "how many layers it has"}
    monkeypatch.setitem(catalogue.SOURCES, "probe", ("own_probes", "register_probe"))
    parser = argparse.ArgumentParser()
    probe_command.add_arguments(parser)
    assert "count_layers         how many layers it has" in parser.epilog
    assert parser.parse_args(["m", "--probe", "count_layers"]).probes == ["count_layers"]


def test_the_command_line_lists_every_built_in_probe():
    built_in = {
        name: probe.label
        for name, probe in PROBES.items()
        if probe.function.__module__.startswith("probes.")
    }
    assert catalogue.known("probe") == built_in


def test_what_is_no_block_is_refused_in_a_sentence():
    class Wrong:
        def blocks(self):
            return ["<b>"]

    with pytest.raises(ValueError, match=r"Wrong.blocks: expected blocks of .*, got str"):
        own_blocks(Wrong())
