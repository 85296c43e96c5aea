"""The page of a sweep: complete whatever state its cells are in, and escaped."""

import math
import re
from html import unescape
from urllib.parse import unquote

import pytest
from sweep_files import Made, write_files

from mtdinterp.pages.blocks import Table
from mtdinterp.sweep.attempts import LOG
from mtdinterp.sweep.axis import scale_of
from mtdinterp.sweep.charts import MOST_FACETS, Results, chart, numbers
from mtdinterp.sweep.page import MOST_ROWS, PAGE, write_page
from mtdinterp.sweep.statistics import choose_axes
from mtdinterp.sweep.table import read_rows, write_table

NASTY = '<b onload="x">&"'


def metrics(length, seed=0, shift=0.0):
    """Metrics whose means are known."""
    return {
        "kl": 1 / length + seed / 1000 + shift,
        "kl_stderr": 0.01,
        "ratio": 1.25 + seed / 100,
        "beta": length / 4,
        "kl_of_one_step": 0.9 / length,
        "kl_of_exact_bayes": 0.8 / length,
        "optimal_beta": length / 3,
        "branch": "direct",
    }


def grid(lengths=(16, 32), architectures=("standard", "disentangled"), seeds=(0, 1)):
    return [
        Made({"length": length, "architecture": name, "seed": seed}, metrics(length, seed))
        for length in lengths
        for name in architectures
        for seed in seeds
    ]


VARIED = ("length", "architecture", "seed")


@pytest.fixture
def sweep(tmp_path):
    return write_files(tmp_path, grid(), VARIED)


def results_of(sweep, **axes):
    rows = {row["name"]: row for row in read_rows(sweep)}
    return Results(sweep, choose_axes(sweep, **axes), rows)


def html_of(sweep, **options):
    path = write_page(sweep, **options)
    assert path == sweep.path / PAGE
    return path.read_text()


def test_a_page_has_the_settings_the_charts_and_the_command(sweep):
    html = html_of(sweep)
    assert "<h1>Sweep: a title</h1>" in html
    assert "8 cells: 8 done." in html
    for words in ("kl, against length", "ratio, against length", "beta, against length"):
        assert words in html
    assert html.count("architecture = standard") >= 3
    assert "mtdinterp sweep run grid.yaml" in html
    assert "8 finished cells, run with mtdinterp 0.1.0, torch 2.0." in html
    assert "Training took 20 s in all." in html


def test_links_lead_to_files_that_are_there(sweep):
    write_table(sweep)
    html = html_of(sweep)
    links = {unquote(unescape(link)) for link in re.findall(r'href="([^#"][^"]*)"', html)}
    assert all((sweep.path / link).exists() for link in links)
    for entry in sweep.entries:
        assert f"cells/{entry.name}/report.html" in links
        assert f"cells/{entry.name}/checkpoint" in links
    assert {"results.csv", "results.parquet"} <= links


def test_a_cell_without_a_report_has_no_link_to_one(tmp_path):
    cell = Made({"length": 16}, metrics(16), report=False)
    html = html_of(write_files(tmp_path, [cell], ()))
    assert "report.html" not in html
    assert "/checkpoint" in html


def test_means_are_over_seeds_and_references_over_all(sweep):
    facets = chart(results_of(sweep), "kl")
    assert [facet.title for facet in facets.facets] == [
        "architecture = standard",
        "architecture = disentangled",
    ]
    (sample,) = facets.facets[0].samples
    assert sample.key == "model"
    assert [mean.value for mean in sample.means] == pytest.approx([1 / 16 + 5e-4, 1 / 32 + 5e-4])
    half = 12.7062 * 5e-4
    assert sample.means[0].high - sample.means[0].value == pytest.approx(half, rel=1e-4)
    assert len(sample.dots) == 4
    one_step, exact = facets.facets[0].references
    assert (one_step.key, exact.key) == ("one_step", "exact_bayes")
    assert one_step.points == ((16.0, 0.9 / 16), (32.0, 0.9 / 32))
    (level,) = chart(results_of(sweep), "ratio").facets[0].references
    assert {value for _, value in level.points} == {1.0}
    (tuned,) = chart(results_of(sweep), "beta").facets[0].references
    assert tuned.points == ((16.0, 16 / 3), (32.0, 32 / 3))


def test_no_tuned_beta_is_drawn_where_the_optimum_is_flat(tmp_path):
    cells = grid(architectures=("standard",))
    for cell in cells:
        cell.metrics["optimal_flat"] = cell.metrics["optimal_beta"] > 6
    sweep = write_files(tmp_path, cells, VARIED)
    (tuned,) = chart(results_of(sweep), "beta").facets[0].references
    assert tuned.points == ((16.0, 16 / 3),)


def test_a_single_run_has_the_interval_of_its_own_standard_error(tmp_path):
    sweep = write_files(tmp_path, grid(seeds=(0,)), VARIED[:2])
    mean = chart(results_of(sweep), "kl").facets[0].samples[0].means[0]
    assert mean.high - mean.value == pytest.approx(1.96 * 0.01, rel=1e-3)
    assert mean.file.endswith("/report.html")
    ratio = chart(results_of(sweep), "ratio").facets[0].samples[0]
    assert math.isnan(ratio.means[0].low)
    assert ratio.dots == ()


def test_other_settings_become_lines_with_a_style_each(tmp_path):
    cells = [
        Made({"length": length, "order": order, "architecture": name}, metrics(length, order))
        for length in (16, 32, 64)
        for order in (2, 3)
        for name in ("standard", "disentangled")
    ]
    sweep = write_files(tmp_path, cells, ("length", "order", "architecture"))
    facets = chart(results_of(sweep), "kl")
    assert [facet.title for facet in facets.facets] == ["order = 2", "order = 3"]
    samples = facets.facets[0].samples
    assert [(sample.key, sample.label) for sample in samples] == [
        ("series_1", "standard"),
        ("series_2", "disentangled"),
    ]
    (reference, _) = chart(results_of(sweep), "kl").facets[0].references
    assert len(reference.points) == 3
    labels = [
        sample.label
        for sample in chart(results_of(sweep, x="length", facets="architecture"), "kl")
        .facets[0]
        .samples
    ]
    assert labels == ["order 2", "order 3"]


def test_references_that_differ_between_lines_are_drawn_for_each(tmp_path):
    cells = []
    for length in (16, 32):
        for order in (2, 3):
            found = {**metrics(length), "kl_of_one_step": order / length}
            cells.append(Made({"length": length, "order": order, "layers": order}, found))
            cells.append(Made({"length": length, "order": order, "layers": 7}, found))
    sweep = write_files(tmp_path, cells, ("length", "order", "layers"))
    facets = chart(results_of(sweep, x="length", facets="layers"), "kl").facets
    references = [line for line in facets[-1].references if line.key == "one_step"]
    assert [line.points[0][1] for line in references] == [2 / 16, 3 / 16]
    assert {line.label for line in references} == {"one step of mirror descent, for each line"}


def test_the_numbers_of_a_chart_are_in_a_folded_table(sweep):
    table = numbers(results_of(sweep), "ratio")
    assert isinstance(table, Table)
    assert table.folded
    assert table.header == ("architecture", "length", "runs", "ratio: mean (95% interval)")
    assert table.rows[0] == ("standard", "16", "2", "1.255 (1.191 to 1.319)")


@pytest.mark.parametrize(
    ("values", "logarithmic", "places"),
    [
        ([16, 32, 64], True, [math.log10(value) for value in (16, 32, 64)]),
        ([16, 32], False, [16, 32]),
        ([10, 20, 30], False, [10, 20, 30]),
        ([0.001, 0.01, 0.1], True, [-3, -2, -1]),
        ([0, 1, 1000], False, [0, 1, 1000]),
    ],
)
def test_lengths_and_wide_ranges_are_on_a_logarithmic_axis(values, logarithmic, places):
    scale = scale_of("x", values)
    assert scale.connected
    assert scale.name.endswith("(logarithmic)") == logarithmic
    assert list(scale.places.values()) == pytest.approx(places)
    assert [label for _, label in scale.ticks] == [str(value) for value in values]


def test_texts_and_missing_values_are_categories():
    scale = scale_of("recipe", ["fast", None, [1, 2], True])
    assert not scale.connected
    assert scale.ticks == ((0.0, "fast"), (1.0, "not set"), (2.0, "1 2"), (3.0, "yes"))


def test_many_values_get_round_ticks():
    assert len(scale_of("x", list(range(100))).ticks) < 12
    rates = [10 ** (-4 + number / 100) for number in range(300)]
    assert [label for _, label in scale_of("x", rates).ticks] == ["0.0001", "0.001", "0.01"]


def test_axes_and_columns_can_be_chosen(sweep):
    html = html_of(sweep, x="architecture", facets="seed", columns=["kl", "kl_stderr", "kl"])
    assert "seed = 0" in html
    assert html.count('<div class="title">') == 2
    assert "kl_stderr, against architecture" in html


def test_unknown_names_are_answered_with_the_known_ones(sweep):
    with pytest.raises(ValueError, match="x: expected one of length, architecture, seed; got 'l'"):
        write_page(sweep, x="l")
    with pytest.raises(ValueError, match=r"facets: .*did you mean 'architecture'"):
        write_page(sweep, facets="arcitecture")
    with pytest.raises(ValueError, match=r"y: .*\(kl, kl_stderr, .*did you mean 'ratio'"):
        write_page(sweep, columns=["ratoi"])
    with pytest.raises(ValueError, match=r"y: expected a column of numbers .*got 'branch'"):
        write_page(sweep, columns=["branch"])
    assert not (sweep.path / PAGE).exists()


def test_a_page_without_finished_cells_says_so(tmp_path):
    cells = [Made({"length": length}) for length in (16, 32)]
    html = html_of(write_files(tmp_path, cells, ("length",)), columns=["anything"])
    assert "2 cells: 2 waiting." in html
    assert "No cell is finished yet." in html
    assert "Failures" not in html


def test_a_sweep_without_cells_has_a_page(tmp_path):
    assert "0 cells." in html_of(write_files(tmp_path, [], (), title=""))


def test_failures_have_their_reason_and_their_log(tmp_path):
    cells = [*grid((16,)), Made({"length": 32, "seed": 0}, failure=f"out of memory\n{NASTY}")]
    sweep = write_files(tmp_path, cells, VARIED)
    log = sweep.directories[-1] / "attempts" / "0001" / LOG
    log.parent.mkdir(parents=True)
    log.write_text("what it printed")
    html = html_of(sweep)
    assert "5 cells: 4 done, 1 failed." in html
    assert f"out of memory\\n{NASTY}" in unescape(html)
    assert f'href="cells/{sweep.entries[-1].name}/attempts/0001/{LOG}"' in html


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_one_setting_or_none_may_vary(tmp_path, seeds):
    cells = grid((16,), ("standard",), seeds)
    html = html_of(write_files(tmp_path, cells, ("seed",)))
    assert html.count("<figure>") == 3
    assert ", against" not in html
    assert ("varied setting" in html) == (len(seeds) > 1)


def test_many_cells_are_folded_and_many_charts_and_lines_are_cut(tmp_path):
    cells = [
        Made({"length": length, "order": order, "recipe": recipe}, metrics(length))
        for length in range(16)
        if length > 1
        for order in range(15)
        for recipe in "abcdefghij"
    ]
    assert len(cells) > 500 > MOST_ROWS
    sweep = write_files(tmp_path, cells[:510], ("length", "order", "recipe"))
    html = html_of(sweep, x="length", facets="order", columns=["kl"])
    assert "<summary>All 510 cells</summary>" in html
    assert f"Only the first {MOST_FACETS} of 15 charts are drawn." in html
    assert "Only the first 8 of 10 lines are drawn." in html
    assert html.count('<svg class="chart"') == MOST_FACETS


def test_missing_settings_and_numbers_leave_gaps(tmp_path):
    cells = [
        Made({"length": 16, "recipe": "fast"}, {**metrics(16), "beta": None, "ratio": math.inf}),
        Made({"length": 32}, {"kl": 0.5}),
    ]
    html = html_of(write_files(tmp_path, cells, ("length", "recipe")))
    assert "not set" in html
    assert "ratio, against" not in html
    assert not re.search(r'="[^"]*\bnan\b', html)


def test_text_from_files_is_escaped(tmp_path):
    settings = {"recipe": NASTY, NASTY: "a\ud800", "b\ud800": 1, "length": 16}
    cells = [
        Made(settings, metrics(16), run={"torch": NASTY, "seconds": 1}),
        Made({**settings, "recipe": "other", "length": 32}, {**metrics(16), f"{NASTY}.r2": 2.0}),
    ]
    sweep = write_files(tmp_path, cells, ("recipe", "length", NASTY), title=NASTY)
    html = html_of(sweep, x="recipe", facets=NASTY, columns=["kl", f"{NASTY}.r2"])
    assert "<b onload" not in html
    assert html.count("&lt;b onload=") > 8
