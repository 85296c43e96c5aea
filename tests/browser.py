"""What a browser in a test has to say about a page: what it logs, what it asks for, what runs over
the edge."""

import json


def set_width(driver, width: int, height: int = 900) -> None:
    """The width of the page itself: a window cannot be as narrow as a phone."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def requests(driver) -> list[str]:
    """Addresses asked for since the last call, but for the browser's own and for what is in the
    page itself."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    return [
        url
        for url in asked
        if not url.startswith(("about:", "chrome:", "chrome-untrusted:", "data:"))
    ]


def complaints(driver) -> list[str]:
    """What the console has against the page since the last call."""
    return [
        entry["message"]
        for entry in driver.get_log("browser")
        if entry["level"] in ("SEVERE", "WARNING")
    ]


def overflowing(driver) -> list[str]:
    """Elements that reach over the right edge of the page, except within a box that scrolls by
    itself."""
    return driver.execute_script("""
        const wide = document.documentElement.clientWidth + 1;
        return [...document.body.querySelectorAll("*")]
          .filter((e) => e.getBoundingClientRect().right > wide)
          .filter((e) => !e.closest(".scroll") && e.getClientRects().length)
          .map((e) => `${e.tagName}.${e.getAttribute("class")}: ${e.textContent.slice(0, 40)}`);""")
