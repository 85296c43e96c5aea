"""The page of all figures: self-contained, escaped, and with links to files that are there."""

import re
from dataclasses import replace

import pytest

from mtdinterp.reproduce.figure import Context, write
from mtdinterp.reproduce.models import ZooModels
from mtdinterp.reproduce.page import MOST_ROWS, render, render_markdown
from mtdinterp.reproduce.tables import dimensions


@pytest.fixture(scope="module")
def found():
    return dimensions(Context(ZooModels()))


def test_links_and_pictures_are_files_of_its_folder(found, tmp_path):
    write(found, tmp_path)
    page = render([found], "mtdinterp reproduce all", "From the zoo.")
    targets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert {target for target in targets if not target.startswith("#")} == {
        "dimensions.png", "dimensions.pdf", "dimensions.csv"}
    assert all((tmp_path / target).is_file() for target in targets if not target.startswith("#"))
    assert all(f'id="{target[1:]}"' in page for target in targets if target.startswith("#"))
    assert not re.search(r"https?://|@import|url\(|<script", page)


def test_everything_is_escaped(found):
    nasty = '<b onload="x">&'
    changed = replace(found, title=nasty, claim=nasty, measured=(nasty,), table=[{nasty: nasty}])
    page = render([changed], nasty, nasty)
    assert "<b" not in page.replace("<body", "")
    assert 'onload="' not in page
    assert page.count("&lt;b onload=&quot;x&quot;&gt;&amp;") >= 8


def test_claims_stand_next_to_measurements_and_numbers_are_on_the_page(found):
    page = render([found], "", "")
    section = page[page.index("<section") :]
    assert section.index("The paper</h3>") < section.index("Measured here</h3>") < section.index("<details>")
    assert section.count("<tr>") == 1 + len(found.table)


def test_a_long_table_is_left_to_its_file(found):
    assert "<details>" not in render([replace(found, table=[*found.table] * MOST_ROWS)], "", "")


def test_markdown_has_every_sentence(found):
    text = " ".join(render_markdown([found], "From the zoo.").split())
    assert found.claim in text
    assert all(sentence in text for sentence in found.measured)
