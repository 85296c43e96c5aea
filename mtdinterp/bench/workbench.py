"""Benchmark of the workbench: the time from a click in an attention map to the resulting bars."""

from statistics import median
from typing import Any

from mtdinterp.bench.browser import browsing, missing, serving, settled
from mtdinterp.bench.measure import Measurement

AIMS = (("disentangled-m4-T64", 150.0), ("disentangled-m4-T256", 600.0))
"""Models, and the milliseconds that the project aims at on two cores."""
CLICKS = 20
QUICK_CLICKS = 5

OPEN = """
const [name, done] = arguments;
fetch("/api/fresh", {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ model: { name } }),
})
  .then((answer) => answer.json())
  .then((state) => {
    workbench.store.begin(state);
    done();
  });
"""
"""Opens a model in the page."""

CLICK = """
const [layer, query, done] = arguments;
const map = workbench.maps.maps.find((map) => map.layer === layer && map.which === "after");
const box = map.above.getBoundingClientRect(), size = workbench.maps.length;
const place = { bubbles: true, cancelable: true, button: 0,
  clientX: box.left + box.width * 0.5 / size,
  clientY: box.top + box.height * (query + 0.5) / size };
const painted = () => setTimeout(() => done(performance.now() - begun));
document.addEventListener("bars", () => requestAnimationFrame(painted), { once: true });
const begun = performance.now();
map.above.dispatchEvent(new PointerEvent("pointerdown", place));
map.above.dispatchEvent(new PointerEvent("pointerup", place));
"""
"""Clicks a row of a layer's map; returns the milliseconds until the new bars were painted."""


def click_to_bars(quick: bool) -> list[Measurement]:
    """The median time of clicks at different places, each a new run of the model."""
    missing_programs = missing()
    if missing_programs:
        name = f"click to bars: {', '.join(missing_programs)} is missing"
        return [Measurement(name, None, "ms")]
    lines = []
    with serving() as address, browsing() as browser:
        browser.get(address)
        settled(browser)
        for name, aim in AIMS[:1] if quick else AIMS:
            times = _click_times(browser, name, QUICK_CLICKS if quick else CLICKS)
            typical = median(times)
            lines += [
                Measurement(f"click to bars, {name}", typical, "ms", aim=aim, at_most=True),
                Measurement(f"the slowest of {len(times)}, {name}", max(times), "ms"),
            ]
    return lines


def _click_times(browser: Any, name: str, count: int) -> list[float]:
    """Milliseconds of each click after opening a model."""
    browser.execute_async_script(OPEN, name)
    settled(browser)
    browser.execute_script("document.getElementById('maps-card').scrollIntoView()")
    length = browser.execute_script("return workbench.maps.length")
    times = []
    for number in range(count):
        layer = number % 2
        query = length - 1 - 2 * number
        times.append(_click(browser, layer, query))
    return times


def _click(browser: Any, layer: int, query: int) -> float:
    """Milliseconds of one click, which is undone afterwards."""
    milliseconds = browser.execute_async_script(CLICK, layer, query)
    settled(browser)
    browser.execute_script("workbench.store.undo()")
    settled(browser)
    return float(milliseconds)
