"""Generated pages of the documentation are current, and what they point to exists."""

import ast
from importlib import import_module
from typing import Any

import pytest
from api_source import public_names, resolve
from build_docs import generators
from generate_api import MODULES, PAGE, api_page
from generate_grids import grid_files

from mtdinterp.report.definitions import CODE, DEFINITIONS
from mtdinterp.sweep.grid import SHIPPED


def test_the_api_reference_is_current():
    assert PAGE.read_text() == api_page(), "docs/api.md is not current; run scripts/build_docs"


@pytest.mark.parametrize(("name", "text"), grid_files().items())
def test_generated_grids_are_current(name, text):
    current = (SHIPPED / name).read_text()
    assert current == text, f"{name} is not current; run scripts/build_docs"


@pytest.mark.parametrize("module", MODULES)
def test_the_api_reference_has_what_the_module_exports(module):
    loaded = import_module(module)
    exported = getattr(loaded, "__all__", None)
    names = {entry.name for entry in public_names(module)}
    if exported is not None:
        assert names == {name for name in exported if not name.startswith("__")}
    assert all(hasattr(loaded, name) for name in names)


def test_the_api_reference_has_what_plugins_are_made_of():
    listed = {entry.name for module in MODULES for entry in public_names(module)}
    needed = {"Evidence", "Result", "Claim", "Status", "decide", "Architecture", "Bars", "LagTask"}
    assert needed <= listed


def test_names_are_found_where_they_are_defined():
    assert resolve("mtdinterp", "MTDTask").module == "mtdinterp.tasks.mtd"
    assert resolve("mtdinterp.training", "PAPER").module == "mtdinterp.training.recipes"


def test_every_public_function_and_class_is_documented():
    for module in MODULES:
        for entry in public_names(module):
            if isinstance(entry.node, ast.FunctionDef | ast.ClassDef):
                assert entry.doc, f"{entry.module}.{entry.name} has no docstring"


def test_generators_are_found_by_listing_and_have_a_main():
    names = generators()
    assert {"generate_api", "generate_terms"} <= set(names)
    assert all(callable(import_module(name).main) for name in names)


def test_every_term_has_a_pointer():
    assert list(CODE) == list(DEFINITIONS)


@pytest.mark.parametrize("pointer", sorted(set(CODE.values())))
def test_pointers_lead_to_code(pointer):
    assert found_in_code(pointer) is not None


def found_in_code(pointer: str) -> Any:
    """What a dotted name stands for: a module's function or class, or a member of a class."""
    parts = pointer.split(".")
    # Only classes are capitalised; if there is one, the module ends before it.
    classes = [place for place, part in enumerate(parts) if part[0].isupper()]
    end = classes[0] if classes else len(parts) - 1
    found: Any = import_module(".".join(parts[:end]))
    for part in parts[end:]:
        found = getattr(found, part)
    return found
