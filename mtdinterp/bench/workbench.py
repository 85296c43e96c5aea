"""From a click in an attention map to the bars that follow from it, in a browser."""

from statistics import median
from typing import Any

from mtdinterp.bench.browser import browsing, missing, serving, settled
from mtdinterp.bench.measure import Measurement

AIMS = (("disentangled-m4-T64", 150.0), ("disentangled-m4-T256", 600.0))
"""Milliseconds that the project promises on two cores."""

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
"""Milliseconds until the frame with the new bars was painted: a click on a row of a layer's map."""


def click_to_bars(quick: bool) -> list[Measurement]:
    """The median of 20 clicks, each at another place and so each a new run of the model."""
    lacking = missing()
    if lacking:
        return [Measurement(f"click to bars: {', '.join(lacking)} is missing", None, "ms")]
    lines = []
    with serving() as address, browsing() as browser:
        browser.get(address)
        settled(browser)
        for name, aim in AIMS[:1] if quick else AIMS:
            browser.execute_async_script(
                "const done = arguments[1]; fetch('/api/fresh', {method: 'POST', headers: "
                "{'content-type': "
                "'application/json'}, body: JSON.stringify({model: {name: "
                "arguments[0]}})}).then((answer) => "
                "answer.json()).then((state) => { workbench.store.begin(state); done(); })",
                name,
            )
            settled(browser)
            browser.execute_script("document.getElementById('maps-card').scrollIntoView()")
            length = browser.execute_script("return workbench.maps.length")
            times = [
                _click(browser, number % 2, length - 1 - 2 * number)
                for number in range(5 if quick else 20)
            ]
            lines.append(
                Measurement(f"click to bars, {name}", median(times), "ms", aim=aim, at_most=True)
            )
            lines.append(Measurement(f"the slowest of {len(times)}, {name}", max(times), "ms"))
    return lines


def _click(browser: Any, layer: int, query: int) -> float:
    milliseconds = browser.execute_async_script(CLICK, layer, query)
    settled(browser)
    browser.execute_script("workbench.store.undo()")
    settled(browser)
    return float(milliseconds)
