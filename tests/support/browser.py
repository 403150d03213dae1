"""A real browser without a window: Debian's chromium under Selenium."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

_WAIT_S = 300
_WIDE = (1180, 800)

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs chromium and chromedriver on PATH (apt-get install chromium chromium-driver)",
)


class Browser:
    """What a person does, and what they see. All waits are for a condition."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def one(self, selector: str) -> WebElement:
        """The first that there is, once there is one."""
        found: WebElement = self.wait(lambda: next(iter(self.all(selector)), None))
        return found

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """As it stands in the document, of the last one; "" where there is none."""
        script = "return [...document.querySelectorAll(arguments[0])].at(-1)?.textContent ?? ''"
        return str(self.script(script, selector))

    def script(self, source: str, *given: Any) -> Any:
        return self.driver.execute_script(source, *given)

    def wait(self, condition: Callable[[], Any]) -> Any:
        waiting = WebDriverWait(self.driver, _WAIT_S, 0.05, [StaleElementReferenceException])
        return waiting.until(lambda _: condition())

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """`scheme`: dark or light."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def clear_data(self, origin: str) -> None:
        """All that its pages have kept."""
        given = {"origin": origin, "storageTypes": "all"}
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", given)

    def forget(self) -> None:
        """Leaves the page, closes all others, and clears what they have kept."""
        origin = self.script("return location.origin")
        first, *others = self.driver.window_handles
        for other in others:
            self.driver.switch_to.window(other)
            self.driver.close()
        self.driver.switch_to.window(first)
        # A page that is still there may be about to write, and complains.
        self.driver.get("about:blank")
        self.clear_data(origin)

    def complaints(self) -> list[str]:
        """What its console has said since the last call, answers with an error status apart."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [
            one["message"] for one in entries if "the server responded with" not in one["message"]
        ]


@contextmanager
def browsing() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    # Tests may run as root in a container, where the sandbox and a large /dev/shm are missing.
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.add_argument(f"--window-size={_WIDE[0]},{_WIDE[1]}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
