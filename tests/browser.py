"""A headless Chromium for tests of pages: what it logs, what it asks for, and what runs over the edge."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
         "--force-device-scale-factor=1")


@contextmanager
def chromium(profile) -> Iterator[webdriver.Chrome]:
    """A fresh browser with its profile in the given directory."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def set_width(driver, width: int, height: int = 900) -> None:
    """The width of the page itself: a window cannot be as narrow as a phone."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})


def requests(driver) -> list[str]:
    """Addresses asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def complaints(driver) -> list[str]:
    """What the console has against the page since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def overflowing(driver) -> list[str]:
    """Elements that reach over the right edge of the page, except within a box that scrolls by itself."""
    return driver.execute_script("""
        const wide = document.documentElement.clientWidth + 1;
        return [...document.body.querySelectorAll("*")]
          .filter((e) => e.getBoundingClientRect().right > wide && !e.closest(".scroll") && e.getClientRects().length)
          .map((e) => e.tagName + "." + e.getAttribute("class") + ": " + e.textContent.slice(0, 40));""")
