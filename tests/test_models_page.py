"""docs/models.md: its formulas are the models, and its tables and diagram are current."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mtdinterp import load_checkpoint
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
)

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "models.md"
sys.path.append(str(ROOT / "scripts"))

import draw_model_diagram  # noqa: E402
import generate_model_tables  # noqa: E402


@pytest.fixture(scope="module")
def formulas():
    """The functions of the forward pass as the page defines them, and nothing else of it."""
    page = PAGE.read_text().split("\n## The forward pass\n")[1]
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict = {}
    for block in blocks:
        if re.search(r"^def ", block, re.MULTILINE):
            exec(block, names)
    return names


def random_model(architecture, **settings):
    torch.manual_seed(0)
    common = {"vocab_size": 4, "length": 9, "n_layers": 2, **settings}
    if architecture == "disentangled":
        model = DisentangledTransformer(DisentangledConfig(**common, d_rel=3))
    else:
        model = StandardTransformer(StandardConfig(**common, d_model=6, d_head=5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.double()


def assert_formula(formulas, model, tokens, tolerance):
    function = formulas[model.config.architecture]
    weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        outputs = model(tokens).numpy()
    for sequence, expected in zip(tokens.numpy(), outputs, strict=True):
        found = function(weights, sequence, model.config.n_layers)
        assert np.abs(found - expected).max() < tolerance


@pytest.mark.parametrize("architecture", ["disentangled", "standard"])
@pytest.mark.parametrize("settings", [{}, {"n_heads": 3}, {"d_mlp": 7}], ids=str)
def test_the_formula_is_the_model(formulas, architecture, settings):
    model = random_model(architecture, **settings)
    assert_formula(formulas, model, torch.randint(0, 4, (3, 8)), tolerance=1e-12)


@pytest.mark.parametrize("name", ["disentangled-m4-T64", "standard-m4-T64"])
def test_the_formula_is_the_trained_model(formulas, name):
    checkpoint = load_checkpoint(name)
    tokens = checkpoint.task.sample(4, 64, seed=0).tokens
    assert_formula(formulas, checkpoint.model, tokens, tolerance=5e-6)


def test_the_tables_are_current():
    page = PAGE.read_text()
    shown = {found[2] for found in generate_model_tables.MARKED.finditer(page)}
    assert shown == generate_model_tables.tables().keys()
    assert generate_model_tables.updated(page) == page, (
        "run python scripts/generate_model_tables.py"
    )


def test_the_diagram_is_current():
    assert draw_model_diagram.TARGET.read_text() == draw_model_diagram.draw(), (
        "run python scripts/draw_model_diagram.py"
    )


def test_a_parameter_without_a_description_is_an_error(monkeypatch):
    monkeypatch.delitem(generate_model_tables.PARAMETERS, "attn.W_A")
    with pytest.raises(KeyError):
        generate_model_tables.tables()
