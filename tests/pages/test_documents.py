"""One document, three ways to show it: whatever a block is, all of them have its words, and none
trusts them."""

import base64
import hashlib
import io
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from mtdinterp.pages.blocks import (
    Bar,
    Bars,
    Columns,
    Document,
    Dot,
    Facet,
    Facets,
    Groups,
    Heading,
    Image,
    Intervals,
    Level,
    Line,
    Lines,
    Link,
    Links,
    Map,
    Maps,
    Matrices,
    Matrix,
    Mean,
    Reading,
    Sample,
    Section,
    Series,
    State,
    Table,
    Text,
)
from mtdinterp.pages.markdown import write_markdown
from mtdinterp.pages.page import fragment, panel, render

NASTY = '<b onload="x">&`|_$\\x$'
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
TEXTS = tuple(
    Text((f"{kind} words", NASTY), kind)
    for kind in ("plain", "soft", "answer", "misfit", "list", "code")
)
CHARTS = (
    Bars(
        "bars",
        (Bar("model", NASTY, 1.5, 0.1), Bar("one_step", "no number", float("nan"), 0.0)),
        "unit",
    ),
    Groups(
        "groups",
        ("first", NASTY),
        (Series("truth", NASTY, (0.5, 0.25)), Series("model", "model", (-0.5, 0.25))),
    ),
    Intervals(
        "intervals", (Reading(NASTY, 2.0, 0.5, "note"),), (Level("one_step", "level", 1.0),), "unit"
    ),
    Lines(
        "lines",
        (Line("model", NASTY, ((0.0, 1.0), (1.0, 2.0))),),
        "x",
        "y",
        moments=((0.5, "moment"),),
    ),
)
VALUES = torch.tensor([[0.0, 1.0], [0.25, 0.0]])
MAPS = Maps("maps", (Map(NASTY, VALUES), Map("second", VALUES)), 1.0, "query", "key", note="a note")
CHANGES = Maps(
    "changes",
    (Map("layer 1", torch.tensor([[-2.0, 0.0, 2.0]]), (NASTY,)),),
    2.0,
    "block",
    "position",
    True,
)
FACETS = Facets(
    "facets",
    (
        Facet(
            NASTY,
            (
                Sample(
                    "model",
                    NASTY,
                    (Dot(0.0, 1.0, NASTY, "a dot.html"), Dot(0.0, 2.0, "second run")),
                    (Mean(0.0, 1.5, -1.0, 4.0, NASTY),),
                ),
            ),
            (Line("one_step", NASTY, ((0.0, 1.2),)),),
        ),
    ),
    NASTY,
    NASTY,
    ((0.0, NASTY),),
    connected=False,
)
BLOCKS = (
    *TEXTS,
    Heading("heading"),
    Columns((("left", ("one side",)), ("right", (NASTY, "another side")))),
    Links((("numbers", "some file.csv"),)),
    Table(("a", "b"), (("yes", NASTY), ("no", "1"))),
    Table(("c",), (("folded cell",),), folded="unfold"),
    Table(("file",), ((Link(f"linked words {NASTY}", "linked file.html"),),)),
    Text((f"folded words {NASTY}",), "misfit", folded=f"unfold words {NASTY}"),
    Table(
        ("state", "claim"),
        (
            (State("holds"), "claim 1"),
            (State("fails"), "claim 2"),
            (State("undecidable", f"a reason {NASTY}"), "claim 3"),
        ),
    ),
    Image("image", PIXEL),
    *CHARTS,
    FACETS,
    Matrices("matrices", (Matrix("matrix", "subtitle", VALUES),), 1.0),
    MAPS,
    CHANGES,
)
DOCUMENT = Document(
    "A document", (Section("first section", BLOCKS), Section("deeper", (TEXTS[0],), level=3))
)
WORDS = (
    "A document",
    "first section",
    "deeper",
    "linked words",
    "facets",
    "heading",
    "left",
    "another side",
    "numbers",
    "folded cell",
    "folded words",
    "unfold words",
    "undecidable",
    "a reason",
    "maps",
    "changes",
    "a note",
    "bars",
    "groups",
    "intervals",
    "lines",
    "matrices",
    *(text.lines[0] for text in TEXTS),
)


@pytest.mark.parametrize("show", [render, fragment])
def test_html_has_every_word_and_trusts_none(show):
    html = show(DOCUMENT)
    assert [words for words in WORDS if words not in html] == []
    assert 'onload="' not in html
    assert "<b " not in html
    assert html.count("&lt;b onload=") >= 12
    links = {"some file.csv", "linked%20file.html", "a%20dot.html"}
    assert set(re.findall(r'href="([^#"][^"]*)"', html)) == links
    assert {source[:22] for source in re.findall(r'src="([^"]+)"', html)} == {
        "data:image/png;base64,"
    }


def test_markdown_has_every_word_and_a_file_a_picture(tmp_path):
    write_markdown(DOCUMENT, tmp_path / "document.md")
    text = (tmp_path / "document.md").read_text()
    assert [words for words in WORDS if words not in text] == []
    code = re.compile(r"```+\n.*?\n```+", re.DOTALL)
    assert NASTY not in code.sub("", text)
    files = re.findall(r"!\[[^]]*\]\(document-figures/(.*?)\)", text)
    assert len(files) == len(CHARTS) + 5
    assert {path.name for path in (tmp_path / "document-figures").iterdir()} == set(files)
    assert "[numbers](some%20file.csv)" in text
    assert "](linked%20file.html)" in text


NAN = float("nan")


@pytest.mark.parametrize(
    "block",
    [
        Groups("no series", ("a",), ()),
        Groups("no categories", (), (Series("model", "model", ()),)),
        Groups("no numbers", ("a",), (Series("model", "model", (NAN,)),)),
        Lines(
            "no numbers",
            (Line("model", "model", ((0.0, NAN), (1.0, float("inf")), (2.0, 1.0))),),
            "x",
            "y",
            levels=(Level("one_step", "level", float("inf")),),
        ),
        Intervals(
            "no numbers",
            (Reading("reading", NAN, NAN, ""),),
            (Level("one_step", "level", NAN),),
            "unit",
        ),
        Facets(
            "no numbers",
            (Facet("", (Sample("model", "model", (Dot(0.0, NAN, "run"),), ()),)),),
            "x",
            "y",
            (),
        ),
        Facets(
            "no interval",
            (Facet("", (Sample("model", "m", (), (Mean(0.0, 1.0, NAN, NAN, "mean"),)),)),),
            "x",
            "y",
            ((0.0, "0"),),
        ),
        Facets("no charts", (), "x", "y", ()),
        Maps("nothing there", (Map("all the same", torch.zeros(2, 2)),), 0.0, "query", "key"),
        Maps("not a number", (Map("one cell", torch.tensor([[NAN]])),), 1.0, "query", "key"),
    ],
)
def test_what_cannot_be_drawn_is_left_out(block):
    html = render(Document("d", (Section("s", (block,)),)))
    assert not re.search(r'="[^"]*\bnan\b', html)


STATES = ((State("holds"),), (State("fails"),), (State("undecidable", "R² is 0.1"),))


def test_a_claim_holds_fails_or_is_undecidable_with_its_reason(tmp_path):
    document = Document("d", (Section("s", (Table(("state",), STATES),)),))
    html = render(document)
    assert '<td><span class="holds">holds</span></td>' in html
    assert '<td><span class="fails">fails</span></td>' in html
    assert '<span class="undecidable">undecidable</span> R² is 0.1</td>' in html
    write_markdown(document, tmp_path / "d.md")
    text = (tmp_path / "d.md").read_text()
    assert text.endswith("| **holds** |\n| **fails** |\n| **undecidable**: R² is 0.1 |\n")


def beta_chart(theory: float) -> Intervals:
    """Two readings near 16, their optimum, and the level of a first-order theory."""
    readings = (Reading("attention", 16.26, 0.09, ""), Reading("output", 15.9, 0.06, ""))
    levels = (Level("one_step", "optimum", 15.8), Level("one_step_theory", "theory", theory))
    return Intervals("β", readings, levels, "β")


def test_a_level_far_from_the_readings_is_an_arrow_at_the_edge():
    html = render(Document("d", (Section("s", (beta_chart(48.0),)),)))
    assert ">theory 48.00</text>" in html
    assert "<title>theory: 48.00, outside the axis</title>" in html
    reading = re.search(r'cx="([\d.]+)"[^>]*><title>attention: ', html)
    optimum = re.search(r'd="M([\d.]+) [^>]*><title>optimum', html)
    assert reading
    assert optimum
    assert float(reading[1]) - float(optimum[1]) > 20  # pixels: the two can be told apart


def test_a_level_near_the_readings_is_a_line():
    html = render(Document("d", (Section("s", (beta_chart(20.0),)),)))
    assert "<title>theory: 20.00</title>" in html
    assert "outside the axis" not in html


def test_a_large_map_is_a_picture_only():
    large = Maps("large", (Map("map", torch.rand(200, 200)),), 1.0, "query", "key")
    html = render(Document("d", (Section("s", (large,)),)))
    assert 'class="cells"' in html
    assert "data-cells" not in html.split("<script>")[0]
    assert "Point at a cell" not in html


def test_a_section_with_a_name_is_linked_by_it():
    html = render(Document("d", (Section("s", (), name="kl-lengths"),)))
    assert '<a href="#kl-lengths">' in html
    assert 'id="kl-lengths"' in html


def test_numbers_in_markdown_tables_can_be_copied(tmp_path):
    write_markdown(
        Document("d", (Section("s", (Table(("a",), (("-0.5",),)),)),)), tmp_path / "d.md"
    )
    assert "| -0.5 |" in (tmp_path / "d.md").read_text()


def test_a_page_may_not_call_anybody_and_has_its_parts_to_jump_to():
    page = render(DOCUMENT)
    assert "default-src 'none'" in page
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert '<a href="#s0">first section</a>' in page
    assert 'id="s0"' in page
    assert '<a href="#s1">' not in page  # a contents of sections, not of what is in them


def test_a_fragment_runs_nothing_and_styles_only_itself():
    html = fragment(DOCUMENT)
    assert "<script" not in html
    assert "data-cells" not in html
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style
    outside = re.sub(r"/\*.*?\*/", "", style[1], flags=re.DOTALL)
    while "{" in (inner := re.sub(r"\{[^{}]*\}", "", outside)):
        outside = inner
    assert set(re.findall(r"^\s*([^\s{][^{]*?)\s*(?:\{|$)", inner, re.MULTILINE)) <= {
        ".mtd-page.mtd-page.mtd-page",
        ":host .mtd-page.mtd-page.mtd-page",  # the root of a panel
        "body.mtd-page.mtd-page",
        "@media print",
    }


def colours(document: Document, number: int) -> np.ndarray:
    """The cells of a map on the page, [row, column, channel] from 0 to 255."""
    sources = re.findall(r'class="cells"[^>]*src="data:image/png;base64,([^"]+)"', render(document))
    return (imread(io.BytesIO(base64.b64decode(sources[number]))) * 255).round()[..., :3]


def test_maps_are_darker_where_there_is_more_by_the_square_root():
    found = colours(DOCUMENT, 0)
    assert found[0, 0].tolist() == [255, 255, 255]
    assert found[0, 1].tolist() == [8, 48, 107]
    assert found[1, 0] == pytest.approx((found[0, 0] + found[0, 1]) / 2, abs=1)  # √0.25 = ½


def test_changes_have_two_colours_around_none():
    down, none, up = colours(DOCUMENT, 2)[0]
    assert down[0] > down[2]
    assert up[2] > up[0]
    assert none.min() > 240


def test_values_of_cells_are_told_to_two_bytes():
    cells = re.search(r'data-cells="([^"]+)"', render(DOCUMENT))
    assert cells
    told = np.frombuffer(base64.b64decode(unescape(cells[1])), "<i2").reshape(2, 2) / 32767
    assert told == pytest.approx(VALUES.numpy(), abs=1e-4)


def test_bars_hang_below_zero():
    html = render(Document("d", (Section("s", (replace(CHARTS[1], categories=("a", "b")),)),)))

    def bar(tip: str) -> tuple[float, float]:
        found = re.search(rf'y="([\d.]+)" width="[\d.]+" height="([\d.]+)"[^>]*><title>{tip}', html)
        assert found
        return float(found[1]), float(found[2])

    (hanging, long), (standing, short) = bar("model, a: -0.5000"), bar("model, b: 0.2500")
    assert hanging == pytest.approx(standing + short, abs=0.2)
    assert long == pytest.approx(2 * short, abs=0.2)


def test_a_panel_has_the_same_blocks_and_neither_script_nor_style():
    shown = panel(BLOCKS)
    assert shown.startswith('<div class="mtd-page">')
    assert not re.search("<script|<style|<b onload", shown)
    assert "folded words" in unescape(shown)


def test_every_string_of_a_block_is_escaped_even_a_kind_that_does_not_exist():
    shown = panel([Text(("words",), NASTY), Table(("state",), ((State(NASTY),),))])
    assert "<b onload" not in shown
    assert NASTY in unescape(shown)
