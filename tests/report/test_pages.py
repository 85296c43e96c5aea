"""Report pages in a real browser: everything drawn, nothing fetched, no complaint, usable on a
phone."""

import re

import pytest
from browser import complaints, overflowing, requests, set_width
from selenium.webdriver.common.action_chains import ActionChains

from mtdinterp.bench.browser import browsing
from mtdinterp.report import write_report


@pytest.fixture(scope="module")
def driver():
    with browsing() as driver:
        yield driver


@pytest.fixture(params=[1, 2])
def page(request, mirrored, construction, tmp_path):
    """One model, and two side by side."""
    return write_report(
        [construction, mirrored][: request.param], tmp_path / "report.html", "mtdinterp report"
    )[0]


def test_everything_is_drawn_and_nothing_fetched(page, driver):
    set_width(driver, 1100)
    driver.get("about:blank")
    requests(driver)
    driver.get(page.as_uri())
    drawn = driver.execute_script("""
        return [...document.querySelectorAll("img.cells")].map((map) => {
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [map.naturalWidth, map.naturalHeight];
        const context = canvas.getContext("2d");
        context.drawImage(map, 0, 0);
        const cells = context.getImageData(0, 0, canvas.width, canvas.height).data;
        return map.complete && new Set(cells).size > 2 && map.clientHeight > 10; });""")
    assert len(drawn) >= 9  # attention of three layers, twice, and a sweep of three
    assert all(drawn)
    charts = driver.execute_script("""
        return [...document.querySelectorAll("svg.chart")].map((chart) => {
          const box = chart.getBBox();
          return [box.width, box.height, chart.querySelectorAll("title").length];
        });""")
    assert len(charts) >= 8
    assert all(width > 50 and height > 50 and marks > 0 for width, height, marks in charts)
    assert requests(driver) == [page.as_uri()]
    assert complaints(driver) == []


@pytest.mark.parametrize("width", [390, 1100])
def test_nothing_runs_over_the_edge(page, driver, width):
    set_width(driver, width)
    driver.get(page.as_uri())
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert overflowing(driver) == []
    smallest = driver.execute_script("""
        return Math.min(...[...document.querySelectorAll("svg.chart text")]
        .map((words) => words.getBoundingClientRect().height));""")
    assert smallest > 8  # pixels: words in charts stay readable


def test_pointing_at_a_map_shows_its_value(page, driver, construction):
    set_width(driver, 1100)
    driver.get(page.as_uri())
    picture = driver.find_element("css selector", "img.cells")
    driver.execute_script("arguments[0].scrollIntoView()", picture)
    width, height = picture.rect["width"], picture.rect["height"]
    ActionChains(driver).move_to_element_with_offset(
        picture, -width / 2 + 2, -height / 2 + 2
    ).perform()
    attention = construction.probes["compare_attention"]
    tip = driver.execute_script(
        "return arguments[0].closest('figure').querySelector('.tip').textContent", picture
    )
    assert tip == f"query 0, key 0 (offset 0): {attention.maps[0].own[0, 0]:.4f}"


def test_a_hostile_name_is_text(page, driver, construction):
    driver.get(page.as_uri())
    assert construction.name in driver.find_element("css selector", "h1").text
    assert re.match('What did the models? "<script>', driver.title)
    assert complaints(driver) == []
