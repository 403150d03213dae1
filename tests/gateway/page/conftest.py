"""Queues with workers, a gateway whose workers may be killed, and a browser on its page."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from tests.support import scripted
from tests.support.browser import Browser, browsing
from tests.support.echo import serving
from tests.support.trial import TrialGateway

QUEUE = "page"
#: Slow enough to do something in mid-sentence.
SETTINGS: dict[str, Any] = {"min_step_s": 0.03, "max_batch_size": 8}
WORKERS = ("worker-a", "worker-b")


@dataclass(frozen=True, slots=True)
class Trial:
    redis_url: str
    workers: Sequence[WorkerProcess]
    gateway: TrialGateway

    @property
    def url(self) -> str:
        return f"{self.gateway.origin}/"


@contextmanager
def running_trial(broker: EmbeddedBroker) -> Iterator[Trial]:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(serving(name, broker.url, queue=QUEUE, **SETTINGS))
            for name in WORKERS
        ]
        gateway = stack.enter_context(TrialGateway(broker.url, QUEUE, *workers))
        gateway.wait_ready()
        yield Trial(broker.url, workers, gateway)


@contextmanager
def running_studio(broker: EmbeddedBroker, **settings: Any) -> Iterator[Trial]:
    """A model that plays a part, one that echoes, and one that embeds."""
    played = {**scripted.WORKER, "reasoning_format": "think", "queue": "played"}
    with ExitStack() as stack:
        workers = [
            stack.enter_context(serving(name, broker.url, **given, **settings))
            for name, given in {
                "player-a": played,
                "player-b": played,
                "worker-c": {"queue": "echoes"},
                "encoder": {"queue": "encoded", "task": "embed"},
            }.items()
        ]
        gateway = TrialGateway(broker.url, "echoes,encoded,played", *workers)
        stack.enter_context(gateway)
        gateway.wait_ready()
        yield Trial(broker.url, workers, gateway)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    """Whoever uses it kills nothing."""
    with EmbeddedBroker() as broker, running_trial(broker) as trial:
        yield trial


@pytest.fixture(scope="module")
def studio() -> Iterator[Trial]:
    """Whoever uses it kills nothing."""
    with EmbeddedBroker() as broker, running_studio(broker) as studio:
        yield studio


@pytest.fixture
def own_trial(own_broker: EmbeddedBroker) -> Iterator[Trial]:
    with running_trial(own_broker) as trial:
        yield trial


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[[Trial], Browser]]:
    """Opens the page as somebody who has never been there. It complains of nothing."""

    def visit(trial: Trial) -> Browser:
        chromium.driver.get(trial.url)
        chromium.wait(lambda: chromium.all("#model option"))
        return chromium

    yield visit
    complaints = chromium.complaints()
    chromium.forget()
    chromium.resize(1180, 800)
    chromium.prefer("light")
    assert [one for one in complaints if "net::ERR_" not in one] == []
