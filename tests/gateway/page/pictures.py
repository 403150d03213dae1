"""Draws the page for the README: `python -m tests.gateway.page.pictures docs/img`."""

import io
import sys
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.keys import Keys

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import two_workers
from tests.support.browser import Browser, browsing
from tests.support.trial import TrialGateway

_QUESTION = "Tell me a story about a shy cow."
_SETTINGS = {"queue": "page", "lease_s": 1, "min_step_s": 0.04, "max_batch_size": 8}


def draw(page: Browser, folder: Path) -> None:
    page.resize(1180, 640)
    page.one("#model option")
    page.one("#input").send_keys(_QUESTION + Keys.ENTER)
    page.wait(lambda: len(page.text(".answer .text")) > 250)
    page.one("#kill").click()
    page.wait(lambda: page.all(".handover"))
    page.wait(lambda: int(page.text("#rate")) > 3)
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        raw = io.BytesIO(page.driver.get_screenshot_as_png())
        picture = Image.open(raw).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        picture.save(folder / f"page-{scheme}.png", optimize=True)


def main(folder: Path) -> None:
    with EmbeddedBroker() as broker, two_workers(broker.url, **_SETTINGS) as workers:
        for worker in workers:
            worker.wait_ready()
        with TrialGateway(broker.url, "page", *workers) as gateway, browsing() as page:
            gateway.wait_ready()
            page.driver.get(gateway.origin)
            draw(page, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
