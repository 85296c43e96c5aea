"""What the documentation says can be typed: its links lead somewhere, its commands parse, its code
runs."""

import re
import shlex
from pathlib import Path

import pytest

from mtdinterp.cli import COMMANDS, build_parser
from mtdinterp.report.definitions import terms_page

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block for found, block in fenced if found == language]


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "") for line in block.splitlines()]
    return sorted({line.split("  ")[0].strip() for line in lines if line.startswith("mtdinterp ")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def anchors(page: Path) -> set[str]:
    """What links to a page's headings are called, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        linked = page.parent / target if target else page
        assert anchor in anchors(linked), f"{target}#{anchor}"


def test_commands_are_found():
    assert {line.split()[1] for line in commands()} == set(COMMANDS) - {
        "zoo"
    }  # which is named in a sentence


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the plugin files that the pages name."""
    monkeypatch.chdir(ROOT / "tests" / "plugins" / "package" / "src" / "mtd_menagerie")
    build_parser().parse_args(shlex.split(command)[1:])


def test_terms_are_those_of_reports() -> None:
    assert (ROOT / "docs" / "terms.md").read_text() == terms_page(), (
        "write it with report.definitions.terms_page"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_can_be_imported(page: Path) -> None:
    for block in blocks(page, "python"):
        for statement in re.findall(
            r"^from [\w.]+ import (?:\([^)]*\)|[^(\n]*)$", block, re.MULTILINE
        ):
            exec(statement, {})


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page: Path) -> None:
    """One block after the other, as a reader would; with fewer steps of training."""
    names: dict = {}
    for block in blocks(page, "python"):
        exec(block.replace("steps=4000", "steps=20"), names)
