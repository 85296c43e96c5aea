"""The page about TransformerLens says what is true: every row is run on both architectures."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from lens_checks import ARCHITECTURES, CHECKS, SECTIONS, Check, outcome
from lens_checks.base import NOT_APPLICABLE, WORKS

ROOT = Path(__file__).parent.parent


def generator() -> ModuleType:
    path = ROOT / "scripts" / "generate_lens_page.py"
    spec = importlib.util.spec_from_file_location("generate_lens_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.run.__name__)
def test_tools_do_what_the_page_says(check: Check, architecture: str) -> None:
    assert outcome(check, architecture) == check.declared(architecture)


def test_the_page_is_up_to_date() -> None:
    page = generator()
    assert page.PAGE.read_text() == page.render(Check.declared), (
        "run python scripts/generate_lens_page.py"
    )


def test_every_check_is_on_the_page_once() -> None:
    titles = [section.title for section in SECTIONS]
    assert {check.section for check in CHECKS} == set(titles)
    assert len({(check.section, check.tool) for check in CHECKS}) == len(CHECKS)


def test_a_wrong_declaration_is_noticed() -> None:
    def passes(setting: object) -> None:
        return None

    def fails(setting: object) -> None:
        raise KeyError("missing")

    reasons = {"standard": "It is not there."}
    assert outcome(Check("s", "t", passes, reasons=reasons), "disentangled") == WORKS
    assert outcome(Check("s", "t", fails, reasons=reasons), "standard") == NOT_APPLICABLE
    with pytest.raises(AssertionError, match="declared not to work on standard, but it does"):
        outcome(Check("s", "t", passes, reasons=reasons), "standard")
    with pytest.raises(KeyError):
        outcome(Check("s", "t", fails, reasons=reasons), "disentangled")
    with pytest.raises(KeyError):
        outcome(Check("s", "t", fails, reasons=reasons, error=TypeError), "standard")
