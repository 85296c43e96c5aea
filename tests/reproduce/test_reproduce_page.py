"""The page of all figures: self-contained, escaped, and with links to files that are there."""

import re
from dataclasses import replace

import pytest

from mtdinterp.checkpoints.provenance import Provenance, recorded_weights
from mtdinterp.pages.page import render
from mtdinterp.reproduce.figure import Context, write
from mtdinterp.reproduce.models import ZooModels
from mtdinterp.reproduce.page import MOST_ROWS, compose, markdown
from mtdinterp.reproduce.tables import dimensions


@pytest.fixture(scope="module")
def found():
    return dimensions(Context(ZooModels()))


@pytest.fixture(scope="module")
def folder(found, tmp_path_factory):
    directory = tmp_path_factory.mktemp("figures")
    write(found, directory)
    return directory


@pytest.fixture
def page(folder):
    """From figures to a page."""
    return lambda *figures: render(
        compose(figures, folder, "mtdinterp reproduce all", "From the zoo.")
    )


def test_pictures_are_in_it_and_links_lead_to_files_of_its_folder(found, folder, page):
    html = page(found)
    links = re.findall(r'href="([^"]+)"', html)
    files = [link for link in links if not link.startswith("#")]
    assert files == ["dimensions.png", "dimensions.pdf", "dimensions.csv"]
    assert all((folder / file).is_file() for file in files)
    assert all(f'id="{link[1:]}"' in html for link in links if link.startswith("#"))
    assert "#dimensions" in links
    assert re.findall(r'src="([^"]{20})', html) == ["data:image/png;base6"]
    assert not re.search(r"https?://|@import|url\(|<script src", html)


def test_everything_is_escaped(found, folder):
    nasty = '<b onload="x">&'
    changed = replace(found, title=nasty, claim=nasty, measured=(nasty,), table=[{nasty: nasty}])
    html = render(compose([changed], folder, nasty, nasty))
    assert "<b" not in html.replace("<body", "")
    assert 'onload="' not in html
    assert html.count("&lt;b onload=&quot;x&quot;&gt;&amp;") >= 9


def test_claims_stand_next_to_measurements_and_numbers_are_on_the_page(found, page):
    html = page(found)
    assert html.index("The paper</h3>") < html.index("Measured here</h3>") < html.index("<details>")
    assert html.count("<tr>") == 1 + len(found.table)


def test_a_long_table_is_left_to_its_file(found, page):
    assert "<details>" not in page(replace(found, table=[*found.table] * MOST_ROWS))


def test_markdown_has_every_sentence_and_says_what_made_it(found):
    provenance = Provenance("mtdinterp reproduce all", {"torch": "2"}, {"a-model": "0" * 64})
    page = markdown([found], "From the zoo.", provenance)
    text = " ".join(page.split())
    assert "Made by `mtdinterp reproduce all` with torch 2." in text
    assert recorded_weights(page) == {"a-model": "0" * 64}
    assert found.claim in text
    assert all(sentence in text for sentence in found.measured)
