"""`useChat` of the AI SDK in a real browser, on a page of another origin than the gateway's."""

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import GatewayProcess, WorkerProcess
from tests.support.browser import Browser, browsing, needs_chromium
from tests.support.echo import echoed_text, serving
from tests.support.node import Node
from tests.typescript.conftest import PROGRAMS

pytestmark = needs_chromium

PROMPT = "the quick brown fox, "
TOKENS = 150


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The origin of a server of static files."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def bundle(node: Node, workshop: Path, project: Path) -> Path:
    """The page's script, whose `roseinfer` is the packed one."""
    shutil.copytree(project / "node_modules" / "roseinfer", workshop / "node_modules" / "roseinfer")
    shutil.copy(PROGRAMS / "chat.jsx", workshop)
    esbuild = next((workshop / "node_modules" / "@esbuild").glob("*/bin/esbuild"))
    made = node.run(
        "-e",
        "require('node:child_process').execFileSync(process.argv[1], process.argv.slice(2),"
        " { stdio: 'inherit' })",
        str(esbuild),
        "chat.jsx",
        "--bundle",
        "--outfile=chat.js",
        "--define:process.env.NODE_ENV='\"production\"'",
        cwd=workshop,
    )
    assert made.returncode == 0, made.stderr
    return workshop / "chat.js"


class Page:
    def __init__(
        self, browser: Browser, workers: list[WorkerProcess], gateway: GatewayProcess
    ) -> None:
        self.browser, self.workers, self.gateway = browser, workers, gateway

    @property
    def answer(self) -> str:
        return self.browser.text(".assistant")

    def ask(self, text: str) -> None:
        self.browser.one("#text").send_keys(text + "\n")

    def until_written(self, characters: int) -> None:
        self.browser.wait(lambda: len(self.answer) >= characters)

    def until_ready(self) -> None:
        self.browser.wait(lambda: self.browser.text("#status") == "ready")

    @property
    def jobs(self) -> list[dict[str, object]]:
        listed: list[dict[str, object]] = httpx.get(f"{self.gateway.url}/jobs").json()["data"]
        return listed


@pytest.fixture
def page(bundle: Path, tmp_path: Path) -> Iterator[Page]:
    shutil.copy(bundle, tmp_path)
    with ExitStack() as stack:
        origin = stack.enter_context(served(tmp_path))
        broker = stack.enter_context(EmbeddedBroker())
        workers = [
            stack.enter_context(serving(f"worker-{name}", broker.url, min_step_s=0.03))
            for name in "ab"
        ]
        gateway = stack.enter_context(GatewayProcess("gateway", broker.url, allowed_origins=origin))
        gateway.wait_ready()
        where = gateway.url.removesuffix("/v1")
        (tmp_path / "index.html").write_text(
            f'<!doctype html><meta charset="utf-8"><title>chat</title>'
            f'<body data-gateway="{where}" data-model="null"><div id="root"></div>'
            '<script src="chat.js"></script></body>'
        )
        browser = stack.enter_context(browsing())
        browser.driver.get(origin)
        yield Page(browser, workers, gateway)


def test_a_chat_survives_reloads_and_the_death_of_worker_and_gateway(page: Page) -> None:
    # given
    page.ask(PROMPT)
    page.until_written(20)
    # when
    page.browser.driver.refresh()
    page.until_written(20)
    (job,) = page.jobs
    status = httpx.get(f"{page.gateway.url}/jobs/{job['id']}").json()
    (writer,) = status["choices"][0]["workers"]
    next(worker for worker in page.workers if worker.name == writer["worker"]).kill()
    page.gateway.kill()
    page.gateway.start()
    # then
    page.until_ready()
    whole = echoed_text(PROMPT, TOKENS)
    assert page.answer == whole
    assert [one.text for one in page.browser.all(".user")] == [PROMPT.strip()]
    # and when it has ended, the page shows what was saved, and the next question goes on from it
    page.browser.driver.refresh()
    page.browser.wait(lambda: page.answer == whole)
    assert len(page.browser.all(".assistant")) == 1
    page.ask("again")
    page.browser.wait(lambda: len(page.browser.all(".assistant")) == 2)
    page.until_ready()
    assert page.browser.text("#error") == ""


def test_stop_cancels_the_job(page: Page) -> None:
    # given
    page.ask(PROMPT)
    page.until_written(20)
    # when
    page.browser.one("#stop").click()
    # then
    page.until_ready()
    (job,) = page.jobs

    def has_ended() -> bool:
        status = httpx.get(f"{page.gateway.url}/jobs/{job['id']}").json()
        return json.dumps(status).count('"cancelled"') == 1

    page.browser.wait(has_ended)
    assert len(page.answer) < len(echoed_text(PROMPT, TOKENS))
