"""The page in a real browser: what one does with a mouse or with keys, and what it shows then.

After every test the console must be free of errors, and nothing may have been asked of any other
machine.
"""

import base64
import csv
import io
import json
import shutil
from dataclasses import dataclass

import pytest
import torch
from browser import complaints, requests
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from mtdinterp.bench.browser import PROGRAMS, browsing, serving, settled
from mtdinterp.bench.workbench import click_to_bars
from mtdinterp.claims import Claim, Status
from mtdinterp.errors import NotApplicable
from mtdinterp.interventions import Edit, FromRun, patch, steer_weights
from mtdinterp.metrics import clip_to_distribution
from mtdinterp.pages.blocks import (
    Bar,
    Bars,
    Heading,
    Intervals,
    Line,
    Lines,
    Links,
    Map,
    Maps,
    Matrices,
    Matrix,
    Reading,
    State,
    Table,
    Text,
)
from mtdinterp.plugins import register_probe
from mtdinterp.registry import ESTIMATORS, PROBES
from mtdinterp.results import Result


class Page:
    """What the tests do with the page."""

    def __init__(self, browser, address):
        self.browser, self.address = browser, address

    def open(self, fragment=""):
        self.browser.get("about:blank")
        self.browser.get(self.address + fragment)
        self.settle()
        return self

    def settle(self):
        settled(self.browser)

    def script(self, text, *arguments):
        return self.browser.execute_script(text, *arguments)

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector):
        element = self.find(selector)
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self.settle()

    def until(self, condition, seconds=30):
        wait = WebDriverWait(self.browser, seconds, poll_frequency=0.02)
        return wait.until(lambda _: condition())

    @property
    def state(self):
        return self.script("return workbench.store.state")

    @property
    def view(self):
        return self.script("return workbench.view")

    def bars(self, chart="weights-chart"):
        """What is drawn, by method."""
        return dict(
            self.script(
                "return document.getElementById(arguments[0]).data.map((bar) => "
                "[bar.name, Array.from(bar.y)])",
                chart,
            )
        )

    def map(self, layer, which):
        element = self.find(f'.map[data-layer="{layer}"][data-which="{which}"] .above')
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        return element

    def cell(self, element, query, key):
        """Where a cell's middle is, from the map's own middle."""
        length = self.script("return workbench.maps.length")
        box = element.rect
        return (
            round((key + 0.5) / length * box["width"] - box["width"] / 2),
            round((query + 0.5) / length * box["height"] - box["height"] / 2),
        )

    def click_cell(self, layer, which, query, key):
        element = self.map(layer, which)
        place = self.cell(element, query, key)
        ActionChains(self.browser).move_to_element_with_offset(element, *place).click().perform()
        self.settle()

    def run_probe(self, name):
        """Run a probe of the open list and return the element with its result."""
        self.click(f'[data-probe="{name}"]')
        host = self.find(f'.probe:has([data-probe="{name}"]) .result')
        found = "div.mtd-page"
        self.until(lambda: host.shadow_root.find_elements(By.CSS_SELECTOR, found), 180)
        return host.shadow_root.find_element(By.CSS_SELECTOR, found)

    def type(self, selector, text):
        """Replace what a field holds, and leave it."""
        self.find(selector).send_keys(Keys.CONTROL + "a" + Keys.NULL, text or Keys.DELETE, Keys.TAB)

    def keys(self, *keys):
        ActionChains(self.browser).send_keys(*keys).perform()

    def chord(self, key, *held):
        actions = ActionChains(self.browser)
        for other in held:
            actions.key_down(other)
        actions.send_keys(key)
        for other in reversed(held):
            actions.key_up(other)
        actions.perform()

    def resize(self, width, height, scheme="light"):
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        self.browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )


@pytest.fixture(scope="module")
def address():
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    assert all(shutil.which(name) for name in PROGRAMS), (
        "scripts/test installs chromium and chromium-driver"
    )
    with browsing() as found:
        yield found


@pytest.fixture
def page(browser, address):
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    found = Page(browser, address)
    found.resize(1440, 900)
    yield found
    assert complaints(browser) == []
    asked = requests(browser)
    assert len(asked) > 5
    assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]


def test_a_first_visit_shows_a_sequence_and_says_what_each_panel_is(page):
    page.open()
    assert page.state["model"]["name"] == "disentangled-m4-T64"
    assert len(page.find("#tokens").find_elements(By.TAG_NAME, "span")) == 64
    drawn = page.bars()
    assert list(drawn) == [
        "truth",
        "exact posterior mean",
        "one step of mirror descent",
        "construction",
        "model",
        "model, edited",
    ]
    assert drawn["truth"][:-1] == pytest.approx(page.state["weights"])
    assert page.bars("prediction-chart")["model"] == pytest.approx(
        page.view["predictions"]["before"]
    )
    maps = page.browser.find_elements(By.CSS_SELECTOR, ".map")
    assert len(maps) == 3 * 4
    for element in maps:
        page.script("arguments[0].scrollIntoView({block: 'center'})", element)
        page.until(lambda element=element: element.find_elements(By.CSS_SELECTOR, ".plot image"))
    scales = page.script(
        "return workbench.maps.maps.map((map) => [map.plot.data[0].zmin, map.plot.data[0].zmax])"
    )
    assert scales == [[0, 1]] * 12
    for card in page.browser.find_elements(By.CSS_SELECTOR, ".card"):
        assert len(card.find_element(By.CSS_SELECTOR, ".says").text) > 30
    assert len(page.browser.find_elements(By.CSS_SELECTOR, "#experiments details")) == 3


def test_picking_a_model_and_going_back(page):
    page.open()
    Select(page.find("#model")).select_by_value("standard-m4-T64")
    page.until(lambda: page.state["model"]["name"] == "standard-m4-T64")
    page.settle()
    assert "no names" in page.find("#stream-says").text
    assert [block["name"] for block in page.view["blocks"]] == ["residual"]
    page.click("#undo")
    assert page.view["model"]["architecture"] == "disentangled"
    page.click("#role label:nth-of-type(2) input")
    assert page.view["weights"]["before"][:4] == pytest.approx(
        page.view["weights"]["one_step"][:4], abs=1e-5
    )
    assert "checkpoint" in page.bars()


def test_a_token_is_changed_by_typing(page):
    page.open()
    before = page.view
    page.click("#tokens span:nth-child(62)")
    old = page.state["tokens"]
    new = (old[61] + 1) % 5
    page.keys(str(new))
    page.until(lambda: page.state["tokens"][61] == new)
    page.settle()
    assert page.state["tokens"][:61] + page.state["tokens"][62:] == old[:61] + old[62:]
    assert page.state["position"] == 62
    assert page.view["predictions"]["before"] != before["predictions"]["before"]
    page.script("document.getElementById('typed').closest('details').open = true")
    typed = page.find("#typed")
    typed.clear()
    typed.send_keys("0 1 2 3 4 0 1 2 3 4 0 1" + Keys.TAB)
    page.until(lambda: len(page.state["tokens"]) == 12)
    page.settle()
    assert page.view["judge"] == "exact_bayes"
    assert page.state["source"] is None


def test_a_click_patches_a_row_and_the_same_click_takes_it_away(page, checkpoint):
    page.open()
    page.click_cell(1, "after", 63, 20)
    state = page.state
    assert [(edit["layer"], edit["position"], edit["key"]) for edit in state["edits"]] == [
        (1, [63, 64], None)
    ]
    expected = patch(
        checkpoint.model,
        torch.tensor([state["tokens"]]),
        [Edit("pattern", FromRun(torch.tensor([state["source"]])), layer=1, position=63)],
    )
    assert page.view["change"] == pytest.approx(expected.kl.item(), abs=1e-9)
    assert float(page.find("#change").text) == pytest.approx(expected.kl.item(), abs=1e-4)
    after = clip_to_distribution(expected.after)[0][0].tolist()
    assert page.bars("prediction-chart")["model, edited"] == pytest.approx(after, abs=1e-6)
    assert "source sequence" in page.find("#edits li").text
    page.until(lambda: "can reach" in page.find("#cone-says").text)
    page.click_cell(1, "after", 63, 20)
    assert page.state["edits"] == []


def test_the_cone_shows_what_can_be_reached_and_what_changed(page):
    page.open()
    page.click_cell(1, "after", 40, 20)
    page.click("#after-mode label:nth-of-type(3) input")
    assert page.script(
        "return workbench.maps.maps.filter((map) => map.which === 'after').map((map) => "
        "map.above.querySelectorAll('.reach').length)"
    ) == [0, 1, 1]
    cone = page.script("return workbench.maps.cone")
    assert [layer["rows"] for layer in cone["layers"]] == [None, [40, 41], [40, 64]]
    largest = max(layer["largest"] for layer in cone["layers"])
    layer = max(range(3), key=lambda number: cone["layers"][number]["largest"])
    drawn = page.script(
        "const {data} = workbench.maps.maps.find((map) => map.which === 'after' && map.layer === "
        "arguments[0]).plot; return [data[0].zmax, data[0].z[arguments[1]][arguments[2]]]",
        layer,
        *cone["layers"][layer]["where"],
    )
    assert drawn[0] == pytest.approx(largest, abs=1e-6)
    assert abs(drawn[1]) == pytest.approx(largest, abs=1e-6)
    assert page.find("#most").text == f"+{largest:.3f}"


def test_ranges_cells_and_rows_dragged_from_the_source(page):
    page.open()
    page.click("#brush label:nth-of-type(2) input")
    element = page.map(0, "before")
    (x, y), (end_x, end_y) = page.cell(element, 40, 10), page.cell(element, 50, 30)
    ActionChains(page.browser).move_to_element_with_offset(
        element, x, y
    ).click_and_hold().move_by_offset(end_x - x, end_y - y).release().perform()
    page.settle()
    assert [(edit["position"], edit["key"]) for edit in page.state["edits"]] == [
        ([40, 51], [10, 31])
    ]
    page.click("#brush label:nth-of-type(1) input")
    giver, taker = page.map(2, "source"), page.map(2, "after")
    # On its way, within the source, the pointer crosses other rows: they stay.
    ActionChains(page.browser).move_to_element_with_offset(
        giver, *page.cell(giver, 30, 28)
    ).click_and_hold().move_to_element_with_offset(
        giver, *page.cell(giver, 45, 10)
    ).move_to_element_with_offset(taker, *page.cell(taker, 63, 60)).release().perform()
    page.settle()
    moved = page.state["edits"][1]
    assert moved["position"] == [63, 64]
    assert moved["source"] == {"kind": "sequence", "layer": 2, "position": 30}
    assert page.view["change"] > 1e-4
    page.click("#brush label:nth-of-type(2) input")
    ActionChains(page.browser).move_to_element_with_offset(
        giver, *page.cell(giver, 30, 28)
    ).click_and_hold().move_to_element_with_offset(
        giver, *page.cell(giver, 45, 10)
    ).move_to_element_with_offset(taker, *page.cell(taker, 50, 3)).release().perform()
    page.settle()
    cell = page.state["edits"][2]
    assert (cell["position"], cell["key"], cell["source"]["position"]) == (
        [50, 51],
        [48, 49],
        30,
    )  # two back, as there
    page.click("#edits li:nth-child(2) input")
    assert page.state["edits"][1]["on"] is False
    page.click("#clear-edits")
    assert page.view["change"] == 0
    ActionChains(page.browser).move_to_element(page.map(2, "after")).click_and_hold().perform()
    assert page.script("return workbench.maps.brush.range !== null")
    page.script(
        "document.dispatchEvent(new PointerEvent('pointercancel'))"
    )  # as when a finger begins to scroll
    ActionChains(page.browser).release().perform()
    page.settle()
    assert page.state["edits"] == []


def test_sliders_by_keyboard_and_by_mouse_and_one_undo_for_a_drag(page, checkpoint):
    page.open()
    beta = page.view["construction"]["beta"]
    page.find("#beta").send_keys(Keys.ARROW_RIGHT * 5)
    page.until(lambda: page.state["model"]["beta"] is not None)
    page.settle()
    assert page.view["construction"]["beta"] == pytest.approx(beta + 0.5, abs=0.11)
    slider = page.find("#steer-sliders .slider:nth-child(2) input")
    page.script("arguments[0].scrollIntoView({block: 'center'})", slider)
    box = slider.rect
    ActionChains(page.browser).move_to_element_with_offset(
        slider, -box["width"] // 2 + 10, 0
    ).click_and_hold().move_by_offset(box["width"] // 4, 0).move_by_offset(
        box["width"] // 4, 0
    ).release().perform()
    page.settle()
    weights = page.state["edits"][0]["source"]["values"]
    assert 0.3 < weights[1] < 0.8
    assert sum(weights) == pytest.approx(1)
    steered = steer_weights(checkpoint.model, torch.tensor([page.state["tokens"]]), weights)
    expected = clip_to_distribution(steered)[0][0].tolist()
    assert page.view["predictions"]["after"] == pytest.approx(expected, abs=1e-7)
    page.click("#undo")
    assert page.state["edits"] == []
    page.click("#undo")
    assert page.state["model"]["beta"] is None
    assert not page.find("#undo").is_enabled()


def test_undo_and_redo_by_keys(page):
    page.open()
    page.click_cell(2, "before", 63, 60)
    changed = page.view
    page.chord("z", Keys.CONTROL)
    page.until(lambda: page.state["edits"] == [])
    page.settle()
    assert page.view["change"] == 0
    page.chord("z", Keys.CONTROL, Keys.SHIFT)
    page.until(lambda: len(page.state["edits"]) == 1)
    page.settle()
    assert page.view == changed


def test_a_block_is_set_by_a_slider(page):
    page.open()
    page.click('[data-block="L2.L1.lag"]')
    slider = page.find("#block-sliders input")
    page.script("arguments[0].scrollIntoView({block: 'center'})", slider)
    slider.send_keys(Keys.END)
    page.until(lambda: page.state["edits"])
    page.settle()
    edit = page.state["edits"][0]
    assert (edit["hook"], edit["layer"], edit["block"], edit["position"]) == (
        "resid_pre",
        2,
        "L2.L1.lag",
        [63, 64],
    )
    held = next(block for block in page.view["blocks"] if block["name"] == "L2.L1.lag")
    assert held["after"][0] == 2
    assert held["after"][1:] == pytest.approx(held["before"][1:])


def test_a_sweep_is_drawn_and_a_cell_applies_its_patch(page):
    page.open()
    page.click("#sweep-run")
    page.until(lambda: "KL" in page.find("#sweep-readout").text)
    value = float(page.find("#sweep-readout").text.split("KL ")[1].split()[0])
    chart = page.find("#sweep-chart")
    chart.send_keys(Keys.ENTER)
    page.until(lambda: page.state["edits"])
    page.settle()
    assert page.state["edits"][0]["hook"] == "resid_pre"
    assert page.view["change"] == pytest.approx(value, abs=2e-5)
    page.click("#clear-edits")
    page.script("arguments[0].scrollIntoView({block: 'center'})", chart)
    plot = page.find("#sweep-chart .nsewdrag")
    ActionChains(page.browser).move_to_element_with_offset(plot, 0, 0).click().perform()
    page.until(lambda: page.state["edits"])
    page.settle()
    assert page.state["edits"][0]["source"] == {"kind": "sequence"}
    ink = "return document.getElementById('sweep-chart').layout.font.color"
    light = page.script(ink)
    page.resize(1440, 900, "dark")
    page.until(lambda: page.script(ink) != light)


def test_long_work_shows_progress_and_can_be_cancelled(page):
    page.open()
    Select(page.find("#model")).select_by_value("disentangled-m3-T128-L5")
    page.until(lambda: page.find("#cancel").is_displayed())  # its construction takes a while to fit
    assert "Opening" in page.find("#status").text
    page.script(
        "const { store } = workbench; store.change({ model: { ...store.state.model, delta: 50 } })"
    )
    page.find("#cancel").click()  # back to what is shown, not one step
    page.settle()
    assert page.state["model"]["name"] == "disentangled-m4-T64"
    Select(page.find("#model")).select_by_value("disentangled-m3-T128-L5")
    page.until(lambda: page.view["model"]["layers"] == 5)
    page.settle()
    page.click("#sweep-run")
    page.until(lambda: float(page.find("#sweep-progress").get_attribute("value")) > 0)
    page.find("#sweep-cancel").click()
    page.until(lambda: page.find("#sweep-readout").text == "Cancelled.")
    assert page.find("#sweep-run").is_enabled()
    assert (
        page.script("return document.getElementById('tokens').scrollTop") > 0
    )  # the last token is chosen, and seen


def test_a_link_in_a_new_tab_gives_the_same_numbers(page):
    page.open()
    page.click_cell(1, "after", 62, 5)
    page.click_cell(2, "reference", 63, 5)
    page.click("#delta-reset")
    link, numbers = page.script("return workbench.store.link"), page.view
    page.until(lambda: page.browser.current_url == link)
    page.browser.switch_to.new_window("tab")
    try:
        page.browser.get(link)
        page.settle()
        assert page.view == numbers
        assert page.bars()["model, edited"] == numbers["weights"]["after"]
    finally:
        page.browser.close()
        page.browser.switch_to.window(page.browser.window_handles[0])


def test_a_broken_link_is_said_and_the_first_view_shown(page):
    page.open("#nonsense")
    assert page.find("#status").text.startswith("This link cannot be opened")
    state = {**page.state, "tokens": [7] * 64}
    page.open("#" + base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("="))
    assert "tokens: expected values in 0..4" in page.find("#status").text
    assert page.state["tokens"] != state["tokens"]
    page.browser.get_log("browser")  # the browser notes the refusal, which is no error of the page


def test_a_broken_link_does_not_take_the_work_away(page):
    page.open()
    page.click_cell(1, "after", 62, 5)
    state, link = page.state, page.script("return workbench.store.link")
    page.script("location.hash = '#nonsense'")
    page.until(lambda: page.find("#status").text.startswith("This link cannot be opened"))
    assert page.state == state
    page.until(lambda: page.browser.current_url == link)
    page.script("document.querySelector('.skip').click()")
    page.until(lambda: page.browser.current_url == link)
    assert page.state == state


def test_a_link_needs_a_model_and_tokens_only(page):
    page.open()
    tokens = page.state["tokens"]
    small = {"model": {"name": "disentangled-m4-T64"}, "tokens": tokens}
    page.open("#" + base64.urlsafe_b64encode(json.dumps(small).encode()).decode().rstrip("="))
    assert page.state["tokens"] == tokens
    assert page.state["model"]["role"] == "checkpoint"
    assert "construction" in page.bars()
    assert page.find("#role input").is_selected()


def test_copied_python_runs_and_gives_the_same_numbers(page, capsys):
    page.open()
    page.click_cell(1, "after", 63, 20)
    page.click_cell(2, "reference", 63, 5)
    page.find("#steer-sliders input").send_keys(Keys.ARROW_RIGHT)
    page.settle()
    page.find("#copy-python").click()
    code = page.until(lambda: page.find("#python-code").get_property("value"))
    page.find("dialog .row button:last-child").click()
    shown = page.view
    exec(compile(code, "copied", "exec"), {})
    printed = json.loads(capsys.readouterr().out)
    assert printed["change"] == pytest.approx(shown["change"], abs=1e-6)
    for what in ("predictions", "kl"):
        for method, value in shown[what].items():
            assert printed[what][method] == pytest.approx(value, abs=1e-6)


def test_keys_alone_are_enough(page):
    page.open()

    def tab_to(selector):
        for _ in range(80):
            page.keys(Keys.TAB)
            if page.script("return document.activeElement.matches(arguments[0])", selector):
                assert (
                    page.script("return getComputedStyle(document.activeElement).outlineStyle")
                    != "none"
                )
                return
        raise AssertionError(f"{selector} is not reached by the tab key")

    tab_to("#experiments details:nth-of-type(3) summary")
    page.keys(Keys.ENTER)
    tab_to('[data-run="break"]')
    page.keys(Keys.ENTER)
    page.until(lambda: "KL to the truth" in page.find("#outcome").text)
    page.settle()
    assert page.state["edits"][0]["source"]["kind"] == "zero"
    tab_to("#edits input[type=checkbox]")
    page.keys(Keys.SPACE)
    page.until(lambda: page.state["edits"][0]["on"] is False)
    tab_to('.map[data-layer="0"][data-which="after"] .above')
    page.keys(Keys.ARROW_UP, Keys.ARROW_UP)
    page.chord(Keys.ARROW_UP, Keys.SHIFT)
    page.keys(Keys.ENTER)
    page.until(lambda: len(page.state["edits"]) == 2)
    page.settle()
    assert page.state["edits"][1]["position"] == [60, 62]
    assert page.view["change"] > 0


def test_an_edit_by_the_form(page):
    page.open()
    page.click("#new-edit")
    Select(page.find("#edit-hook")).select_by_value("resid_pre")
    Select(page.find("#edit-layer")).select_by_value("2")
    Select(page.find("#edit-block")).select_by_value("L2.L1.lag")
    page.find("#edit-position").send_keys("60-63")
    Select(page.find("#edit-source")).select_by_value("sequence")
    page.click("#add-edit")
    edit = page.state["edits"][0]
    assert (edit["block"], edit["position"], edit["source"]) == (
        "L2.L1.lag",
        [60, 64],
        {"kind": "sequence"},
    )
    change = page.view["change"]
    assert change > 0
    Select(page.find("#edit-source")).select_by_value("zero")
    page.until(lambda: page.state["edits"][0]["source"]["kind"] == "zero")
    page.settle()
    assert page.view["change"] != change


def refused(page, act, sentence):
    """What `act` tries is said to be wrong, and nothing of it stays."""
    before, steps = page.state, page.script("return workbench.store.past.length")
    act()
    page.until(lambda: sentence in page.find("#status").text)
    page.settle()
    assert page.state == before
    assert page.script("return workbench.store.past.length") == steps


def test_what_is_refused_does_not_stay(page):
    page.open()
    page.click_cell(1, "after", 63, 20)
    page.script("document.getElementById('typed').closest('details').open = true")
    refused(page, lambda: page.type("#typed", "0 1 2"), "tokens: expected more than m = 4 tokens")
    kind = Select(page.find("#edit-source"))
    # Of a row without keys.
    refused(page, lambda: kind.select_by_value("share"), "applies to attention only")
    assert kind.first_selected_option.get_attribute("value") == "sequence"
    kind.select_by_value("zero")
    page.until(lambda: page.state["edits"][0]["source"] == {"kind": "zero"})
    page.settle()
    page.click("#undo")
    assert (
        kind.first_selected_option.get_attribute("value") == "sequence"
    )  # though the form has the focus
    refused(page, lambda: kind.select_by_value("share"), "applies to attention only")
    page.click("#redo")  # what was refused took nothing with it
    page.until(lambda: page.state["edits"][0]["source"] == {"kind": "zero"})
    page.settle()
    page.script(
        "const { store } = workbench; const [edit] = store.state.edits;"
        "store.change({ edits: Array(32).fill(edit), selected: null })"
    )
    page.settle()
    refused(page, lambda: page.click_cell(2, "after", 63, 20), "at most 32 edits")
    page.browser.get_log("browser")  # the browser notes the refusals


def test_a_value_of_one_kind_is_not_taken_for_another(page):
    page.open()
    page.click_cell(2, "after", 63, 62)
    page.type("#edit-key", "62")
    kind = Select(page.find("#edit-source"))
    kind.select_by_value("number")
    page.settle()
    page.find("#edit-values input").send_keys(Keys.HOME)
    page.until(lambda: page.state["edits"][0]["source"].get("value") == -2)
    kind.select_by_value("share")
    page.settle()
    assert page.state["edits"][0]["source"] == {"kind": "share", "value": 0.5}


def test_places_that_are_none_are_said(page):
    page.open()
    page.click_cell(1, "after", 63, 20)
    refused(page, lambda: page.type("#edit-position", "70"), "Positions: expected 0 to 63")
    page.type("#edit-position", "-4 - -1")
    page.until(lambda: page.state["edits"][0]["position"] == [60, 64])
    refused(page, lambda: page.type("#edit-key", "last"), "Keys: expected 0 to 63")
    page.type("#edit-key", "")
    refused(page, lambda: page.type("#edit-from", "9 5"), "From layer, position: expected a layer")
    page.click("#new-edit")
    Select(page.find("#edit-hook")).select_by_value("resid_pre")
    Select(page.find("#edit-source")).select_by_value("values")
    refused(page, lambda: page.click("#add-edit"), "choose a block")


def test_the_other_model_has_no_edits_of_blocks_it_lacks(page):
    page.open()
    Select(page.find("#model")).select_by_value("standard-m4-T64")
    page.until(lambda: page.view["model"]["architecture"] == "standard")
    page.settle()
    width = page.view["model"]["blocks"][0]["width"]
    page.script(
        "workbench.store.addEdit({hook: 'resid_post', layer: 2, block: 'residual', on: true, "
        "position: [63, 64], source: {kind: 'values', values: Array(arguments[0]).fill(0)}})",
        width,
    )
    page.settle()
    page.click("#role label:nth-of-type(2) input")
    assert page.state["model"]["role"] == "construction"
    assert page.state["edits"] == []
    assert "Removed 1 edit" in page.find("#status").text


def test_an_answer_to_a_state_that_is_gone_is_not_applied(page):
    page.open()
    late = page.script("""
        const { store } = workbench, [first] = store.state.tokens;
        document.getElementById("sample").click();
        store.change({ tokens: store.state.tokens.with(0, (first + 1) % 5) });
        return store.state.tokens;
    """)
    page.script("return fetch('/api/about').then((answer) => answer.text())")
    page.settle()
    assert page.state["tokens"] == late
    page.type("#length", "40")
    page.until(lambda: len(page.state["tokens"]) == 40)
    page.settle()
    assert len(page.state["source"]) == 40
    page.click("#undo")
    assert page.state["tokens"] == late


def test_an_outcome_is_of_its_experiment_alone(page):
    page.open()
    page.click("#experiments details:nth-of-type(3) summary")
    page.find('[data-run="break"]').click()
    page.until(lambda: page.find("#outcome").text)
    page.settle()
    page.click("#tokens span:nth-child(20)")
    assert page.find("#outcome").text
    page.click("#edits input[type=checkbox]")
    assert not page.find("#outcome").text


def test_the_readout_is_of_what_is_shown(page):
    page.open()
    page.click_cell(2, "after", 63, 62)
    at = 2 * 64 * 64 + 63 * 64 + 62
    after = page.script("return workbench.maps.data.after[arguments[0]]", at)
    assert after != pytest.approx(
        page.script("return workbench.maps.data.before[arguments[0]]", at), abs=1e-3
    )
    assert f"after {after:.3f}" in page.find("#readout").text


def test_an_additive_stream_is_written_where_it_is_shown(page):
    page.open()
    Select(page.find("#model")).select_by_value("standard-m4-T64")
    page.until(lambda: page.view["model"]["architecture"] == "standard")
    page.settle()
    page.click('[data-block="residual"]')
    page.find("#block-sliders input").send_keys(Keys.END)
    page.until(lambda: page.state["edits"])
    page.settle()
    held = page.view["blocks"][0]
    assert held["after"][0] == 2
    assert held["after"][1:] == pytest.approx(held["before"][1:], abs=1e-6)
    assert page.view["change"] > 0


def test_the_last_input_wins(page):
    page.open()
    final = page.script("""
        const slider = document.querySelector("#steer-sliders input");
        for (let step = 1; step <= 40; step += 1) {
          slider.value = step / 40;
          slider.dispatchEvent(new Event("input", { bubbles: true }));
        }
        return workbench.requests.asked;
    """)
    page.settle()
    assert final > 40
    assert page.view["weights"]["after"][0] == pytest.approx(1)
    asked = [url for url in requests(page.browser) if url.endswith("/api/view")]
    assert len(asked) < 10  # the first view, one on its way, and the last one
    page.open()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_and_does_not_jump(page, width, scheme):
    page.resize(width, 900, scheme)
    page.open()
    where = (
        "return [...document.querySelectorAll('.card')].map((card) => { const box = "
        "card.getBoundingClientRect();"
        " return [box.left, box.top + scrollY, box.right, box.height].map(Math.round); })"
    )
    before = page.script(where)
    assert page.script("return document.documentElement.scrollWidth") <= width
    assert all(0 <= left < right <= width for left, _, right, _ in before)
    assert max(right for _, _, right, _ in before) > width - 20
    assert len({(left, right) for left, _, right, _ in before}) == 1 or width != 390  # one column
    assert len({left for left, *_ in before}) > 3 or width == 390
    page.click_cell(1, "after", 63, 20)
    page.until(lambda: "can reach" in page.find("#cone-says").text)
    after = page.script(where)
    moved = [abs(one[1] - other[1]) for one, other in zip(before, after, strict=True)]
    assert max(moved[:-5]) <= 1  # above the maps, and they themselves, nothing moves
    back = page.script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) > 380) is (scheme == "light")
    ink = page.script("return document.getElementById('weights-chart').layout.font.color")
    assert (int(ink[1:3], 16) > 128) is (scheme == "dark")
    controls = "button,select,input,textarea,summary,[tabindex]"
    unnamed = page.script(
        "return [...document.querySelectorAll(arguments[0])].filter((entry) => !("
        "entry.textContent.trim() || entry.ariaLabel || entry.labels?.length)).length",
        controls,
    )
    assert unnamed == 0
    if width == 390:
        small = page.script("""
            const kinds = "button,select,input,textarea,summary,.strip span";
            const targets = document.querySelectorAll(kinds);
            return [...targets].filter((entry) => {
              const { width, height } = entry.getBoundingClientRect();
              const shown = entry.checkVisibility({ visibilityProperty: true });
              return shown && Math.min(width, height) < 24;
            }).map((entry) => entry.outerHTML.slice(0, 80))""")
        assert small == []


def test_exports_are_what_is_shown(page, tmp_path):
    page.open()
    page.click_cell(1, "after", 63, 20)
    page.browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    found = {}
    for kind in ("json", "csv", "svg", "png", "html"):
        page.find("#export summary").click()
        page.find(f'[data-export="{kind}"]').click()
        path = tmp_path / f"disentangled-m4-T64-view.{kind}"
        page.until(
            lambda path=path: path.exists() and path.stat().st_size > 0
        )  # Chromium makes it before it fills it
        found[kind] = path
    numbers = json.loads(found["json"].read_text())
    assert numbers["predictions"] == page.view["predictions"]
    assert numbers["state"] == page.state
    rows = list(csv.DictReader(io.StringIO(found["csv"].read_text())))
    values = {(row["what"], row["method"], row["entry"]): row["value"] for row in rows}
    assert float(values["prediction", "model, edited", "0"]) == page.view["predictions"]["after"][0]
    assert found["svg"].read_text().startswith("<svg")
    assert found["svg"].read_text().count("<image") == 12
    assert found["png"].read_bytes().startswith(b"\x89PNG")
    assert "Layer 2: attention, query 63" in found["html"].read_text()


def test_exports_call_the_reference_model_by_its_name(page, tmp_path):
    page.open()
    page.click("#role label:nth-of-type(2) input")
    page.browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    for kind in ("json", "csv", "svg"):
        page.find("#export summary").click()
        page.find(f'[data-export="{kind}"]').click()
        path = tmp_path / f"disentangled-m4-T64-view.{kind}"
        page.until(
            lambda path=path: path.exists() and path.stat().st_size > 0
        )  # Chromium makes it before it fills it
        found = path.read_text()
        if kind == "json":
            assert json.loads(found)["labels"]["construction"] == "checkpoint"
        else:
            named = {"csv": ",{},", "svg": ">{}</text>"}[kind]
            assert named.format("checkpoint") in found
            assert named.format("construction") not in found


def test_the_bench_measures_from_click_to_bars():
    """Ten times the promise: this machine may be busy, and `mtdinterp bench --group app` measures
    it in peace."""
    median, slowest = click_to_bars(quick=True)
    assert 0 < median.value <= slowest.value
    assert median.value < 10 * median.aim


def test_the_tables_of_estimators_and_probes_have_a_row_each(page):
    page.open()
    page.click("#estimators summary")
    rows = "#estimator-rows tbody tr"
    page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, rows))
    shown = page.browser.find_elements(By.CSS_SELECTOR, rows)
    assert [row.get_attribute("data-estimator") for row in shown] == list(ESTIMATORS)
    page.click("#probes summary")
    buttons = page.browser.find_elements(By.CSS_SELECTOR, "#probe-list button")
    assert [button.get_attribute("data-probe") for button in buttons] == ["verdict", *PROBES]
    result = page.run_probe("recover_beta")
    assert "first-order theory" in result.find_element(By.CSS_SELECTOR, "svg").text
    states = result.find_elements(By.CSS_SELECTOR, "td .holds, td .fails, td .undecidable")
    assert [state.text for state in states] == ["holds", "holds"]
    summary = result.find_element(By.CSS_SELECTOR, "details summary")
    assert summary.text == "As text"


HOSTILE = (
    "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
)


@dataclass(frozen=True, kw_only=True)
class Hostile(Result):
    """Everything that a plugin may write is markup here."""

    def summary(self):
        return HOSTILE

    def claims(self):
        texts = dict.fromkeys(("claim", "evidence", "number", "threshold", "control"), HOSTILE)
        status = Status.UNDECIDABLE
        claim = Claim(status=status, reason=HOSTILE, n_sequences=7, seed=3, **texts)
        return (claim,)

    def blocks(self):
        bar = Bar(HOSTILE, HOSTILE, 1.0, 0.1)
        values = torch.eye(2)
        return [
            Heading(HOSTILE),
            Text((HOSTILE,), HOSTILE),
            Table((HOSTILE,), ((HOSTILE,), (State(HOSTILE, HOSTILE),)), HOSTILE),
            Bars(HOSTILE, (bar,), HOSTILE),
            Intervals(HOSTILE, (Reading(HOSTILE, 1, 0.1, HOSTILE),), (), HOSTILE),
            Lines(HOSTILE, (Line("model", HOSTILE, ((0, 1), (1, 2))),), HOSTILE, HOSTILE),
            Matrices(HOSTILE, (Matrix(HOSTILE, HOSTILE, values),), 1.0),
            Maps(HOSTILE, (Map(HOSTILE, values),), 1.0, HOSTILE, HOSTILE, note=HOSTILE),
            Links(((HOSTILE, HOSTILE),)),
        ]


@pytest.fixture
def hostile_probe():
    """A plugin's probe; the server runs in this process, so it is offered at once."""

    @register_probe("hostile", label=HOSTILE)
    def hostile(model, task):
        return Hostile(n_sequences=7, seed=3)

    yield
    PROBES.remove("hostile")


def test_a_plugins_result_is_shown_like_a_built_in_one_and_as_text(page, hostile_probe):
    page.open()
    title = page.browser.title
    page.click("#probes summary")
    entry = page.find('.probe:has([data-probe="hostile"])')
    assert HOSTILE in entry.text
    result = page.run_probe("hostile")
    row = result.find_elements(By.CSS_SELECTOR, "table")[0].text
    assert "undecidable" in row
    assert "7 (3)" in row
    assert result.text.count(HOSTILE) > 10
    assert len(result.find_elements(By.CSS_SELECTOR, "svg.chart")) == 4
    assert not result.find_elements(By.CSS_SELECTOR, "script, img[onerror], [onload]")
    for image in result.find_elements(By.CSS_SELECTOR, "img"):
        assert image.get_attribute("src").startswith("data:image/png")
    assert page.browser.title == title


@pytest.fixture
def silent_probe():
    @register_probe("silent", label="a question without an answer")
    def silent(model, task):
        raise NotApplicable("This question has no answer here.")

    yield
    PROBES.remove("silent")


def test_a_probe_without_an_answer_says_so(page, silent_probe):
    page.open()
    page.click("#probes summary")
    page.click('[data-probe="silent"]')
    status = page.find('.probe:has([data-probe="silent"]) output')
    page.until(lambda: status.text == "This question has no answer here.")
    page.browser.get_log("browser")  # the browser itself logs the refusal


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_a_result_stays_inside_its_card(page, width, scheme):
    page.resize(width, 900, scheme)
    page.open()
    page.click("#probes summary")
    for name in ("recover_beta", "compare_attention", "recover_transition"):
        result = page.run_probe(name)
        card = page.find("#probes-card").rect
        assert result.rect["x"] + result.rect["width"] <= card["x"] + card["width"]
    assert page.script("return document.documentElement.scrollWidth") <= width


def test_a_link_to_an_unknown_model_names_the_nearest_and_opens_the_first(page):
    page.open()
    state = page.state | {"model": {"name": "disentangled-m4-T65"}}
    text = base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")
    page.open(f"#{text}")
    said = page.find("#status").text
    assert said == (
        "This link cannot be opened: There is no model 'disentangled-m4-T65' here. Did you mean "
        "'disentangled-m4-T64'? The Model panel lists the models that can be opened."
    )
    assert page.state["model"]["name"] == "disentangled-m4-T64"
    page.browser.get_log("browser")  # the browser itself logs the refusal
