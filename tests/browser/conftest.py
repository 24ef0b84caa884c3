"""A real browser, pages for it to open, and what it noticed: requests, complaints, violations of accessibility.

`scripts/browser` fetches chromium, its driver and axe-core; without them these tests skip, and say why.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.pages import write_pages

WIDTHS, MODES, HIGH = (360, 720, 1280), ("light", "dark"), 900
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
ROOT = Path(__file__).parents[2]
RUN_AXE = """const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then(
  (found) => done(found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target).slice(0, 3)}`)))"""


def axe_file() -> Path:
    said = (ROOT / "scripts" / "browser").read_text(encoding="utf-8")
    version = re.search(r"^version=(\S+)$", said, re.MULTILINE)
    cache = Path(os.environ.get("LINEAGE_TEST_CACHE") or Path.home() / ".cache" / "lineage-tests")
    return cache / f"axe-core-{version[1] if version else ''}.min.js"


class Browser:
    """A page in chromium. What it does through the driver waits until it is done."""

    def __init__(self, driver: Any, axe: str) -> None:
        self.driver, self._axe = driver, axe

    def open(self, page: Path) -> None:
        self.wide(WIDTHS[-1])
        self.light(MODES[0])
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):  # what was noticed of the page before
            self.driver.get_log(kind)
        self.driver.get(page.as_uri())
        self.run("return document.fonts.ready.then(() => 0)")

    def light(self, mode: str) -> None:
        self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])

    def wide(self, width: int) -> None:
        size = {"width": width, "height": HIGH, "deviceScaleFactor": 1, "mobile": False}
        self._tell("Emulation.setDeviceMetricsOverride", **size)

    def _tell(self, command: str, **given: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, given)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        """The text of each element, shown or not."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector)

    def data(self) -> Any:
        return json.loads(self.texts("#data")[0])

    def shown(self, selector: str) -> int:
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].filter((one) => one.checkVisibility()).length",
            selector,
        )

    def press(self, key: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(key).perform()

    def violations(self) -> list[str]:
        """Of the rules of accessibility that axe-core knows."""
        self.run(self._axe)
        return self.driver.execute_async_script(RUN_AXE)

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]

    def printed(self) -> str:
        """The page as PDF, in base64."""
        return self._tell("Page.printToPDF")["data"]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, chromedriver, axe = shutil.which("chromium"), shutil.which("chromedriver"), axe_file()
    if not chromium or not chromedriver:
        pytest.skip("no chromium with chromedriver here: scripts/browser installs them, as root")
    if not axe.is_file():
        pytest.skip(f"no {axe.name} in {axe.parent}: scripts/browser fetches it")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield Browser(driver, axe.read_text(encoding="utf-8"))
    finally:
        driver.quit()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a gallery and with pages of strange models."""
    return write_pages(tmp_path_factory.mktemp("pages"))
