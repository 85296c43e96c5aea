"""The workbench in a real browser: a server in this process and Debian's Chromium without a window.

For measurements, and for the tests of the page.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PROGRAMS = ("chromium", "chromedriver")
IDLE = (
    "return document.documentElement.dataset.ready === 'yes' && workbench.requests.idle && "
    "workbench.maps.requests.idle && workbench.cones.idle && workbench.shownState === "
    "workbench.store.state"
)
"""Whether the page shows the state that it has."""


def missing() -> list[str]:
    """What is not there of all that is needed."""
    packages = [
        name for name in ("fastapi", "uvicorn", "plotly", "selenium") if find_spec(name) is None
    ]
    return packages + [name for name in PROGRAMS if shutil.which(name) is None]


@contextmanager
def serving(checkpoints: Sequence[str] = ()) -> Iterator[str]:
    """The address of a workbench that runs in a thread of this process."""
    import uvicorn

    from mtdinterp.app.listen import ADDRESS, listen
    from mtdinterp.app.models import Registry
    from mtdinterp.app.server import create_app

    with listen(0) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(create_app(Registry(checkpoints), port), log_level="warning")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://{ADDRESS}:{port}/"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def browsing(width: int = 1440, height: int = 900) -> Iterator[Any]:
    """A browser with a profile of its own, whose console and requests are recorded."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            browser.set_script_timeout(60)
            browser.get("about:blank")  # not the page for new tabs, which has a life of its own
            yield browser
        finally:
            browser.quit()


def settled(browser: Any, seconds: float = 60) -> None:
    """Wait until the page shows what it was asked for."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, seconds, poll_frequency=0.02).until(
        lambda here: here.execute_script(IDLE)
    )
