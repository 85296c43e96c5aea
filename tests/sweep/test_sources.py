"""The hash of a cell covers every module that a training run computes with."""

import subprocess
import sys

import pytest

from mtdinterp.sweep import sources
from mtdinterp.sweep.sources import PACKAGE, deciding_files, sources_digest

TRAINING = """
import sys
from mtdinterp import MTDTask
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.training import HeldOut, Recipe, Trainer, initialise
from mtdinterp.training.growth import grow

task = MTDTask.random(3, 2, seed=0)
model = DisentangledTransformer(DisentangledConfig(vocab_size=3, length=12, d_rel=2))
recipe = Recipe(steps=3, batch_size=4, learning_rate=1e-2)
initialise(model, recipe.initialisation, 0)
Trainer(model, task, recipe, 0, HeldOut.prepare(task, 12, 64)).run()
grow(model, 16)
files = [getattr(module, "__file__", None) for module in sys.modules.values()]
print(*[file for file in files if file], sep="\\n")
"""
WITHOUT_NUMBERS = {
    "__init__.py",
    "bounded_files.py",
    "checks.py",
    "errors.py",
    "formatting.py",
    "history_lines.py",
    "matrix_files.py",
    "plugins.py",
    "providers.py",
    "registry.py",
    "style.py",
}
"""Modules that training imports but does not compute with: they check, look up, read or show."""


def test_no_module_that_computes_is_forgotten():
    command = [sys.executable, "-c", TRAINING]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    covered = {str(path) for path in deciding_files()}
    loaded = {line for line in printed.splitlines() if line.startswith(f"{PACKAGE}/")}
    forgotten = {line.removeprefix(f"{PACKAGE}/") for line in loaded - covered}
    assert forgotten <= WITHOUT_NUMBERS


@pytest.mark.parametrize("name", ["native/step.cpp", "training/loop.py", "evidence.py"])
def test_a_changed_file_changes_the_hash(name, tmp_path, monkeypatch):
    before = sources_digest()
    copies = []
    for path in deciding_files():
        copy = tmp_path / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        copies.append(copy)
    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    monkeypatch.setattr(sources, "deciding_files", lambda: copies)
    assert sources_digest.__wrapped__() == before
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b" ")
    assert sources_digest.__wrapped__() != before
