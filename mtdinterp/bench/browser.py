"""The workbench in a real browser: a server in this process, and a headless Chromium.

Used by benchmarks and by the tests of the page.
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
PACKAGES = ("fastapi", "uvicorn", "plotly", "selenium")
PROGRAMS = ("chromium", "chromedriver")
IDLE = (
    "return document.documentElement.dataset.ready === 'yes' && workbench.requests.idle && "
    "workbench.maps.requests.idle && workbench.cones.idle && workbench.shownState === "
    "workbench.store.state"
)
"""JavaScript that returns whether the page shows its current state."""


def missing() -> list[str]:
    """The packages and programs that are needed and not installed."""
    packages = [name for name in PACKAGES if find_spec(name) is None]
    programs = [name for name in PROGRAMS if shutil.which(name) is None]
    return packages + programs


@contextmanager
def serving(checkpoints: Sequence[str] = ()) -> Iterator[str]:
    """Run a workbench in a thread of this process; yields its address."""
    import uvicorn

    from mtdinterp.app.listen import ADDRESS, listen
    from mtdinterp.app.models import Registry
    from mtdinterp.app.server import create_app

    with listen(0) as listener:
        port = listener.getsockname()[1]
        app = create_app(Registry(checkpoints), port)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
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
    """Start a browser with a fresh profile; its console and requests are recorded."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        flags = (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}")
        for flag in flags:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(shutil.which("chromedriver"))
        browser = webdriver.Chrome(options=options, service=service)
        try:
            browser.set_script_timeout(60)
            browser.get("about:blank")  # the page for new tabs sends requests itself
            yield browser
        finally:
            browser.quit()


def settled(browser: Any, seconds: float = 60) -> None:
    """Wait until the page shows its current state."""
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(browser, seconds, poll_frequency=0.02)
    wait.until(lambda driver: driver.execute_script(IDLE))
