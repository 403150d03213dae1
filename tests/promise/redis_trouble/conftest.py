"""Redis in trouble while a worker decodes and subscribers listen: all see is a pause.

One redis-server and one worker serve a whole file: the worker is told of a proxy, through which
it meets most of the trouble, and no trouble may end it.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis

from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client
from tests.support.echo import serving
from tests.support.mid_sentence import QUEUE, WORKER_SETTINGS, Stream, settings
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    options = {"appendfsync": "always", "enable-debug-command": "local"}
    with EmbeddedBroker(fake=False, options=options) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: EmbeddedBroker) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def shared_worker(proxy: Proxy) -> Iterator[WorkerProcess]:
    with serving("shared", proxy.url, **WORKER_SETTINGS) as worker:
        yield worker


@pytest.fixture
def worker(
    shared_worker: WorkerProcess, proxy: Proxy, server: EmbeddedBroker, admin: redis.Redis
) -> Iterator[WorkerProcess]:
    """Alive before and after, and well again: it has nothing in hand."""
    yield shared_worker
    proxy.heal()
    assert shared_worker.running, shared_worker.log[-2000:]


@pytest.fixture
def admin(server: EmbeddedBroker) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, protocol=2) as admin:
        yield admin


@pytest.fixture
def partition() -> Partition:
    return Partition(QUEUE)


@pytest.fixture
def client(server: EmbeddedBroker) -> Iterator[Client]:
    with Client(settings(server.url)) as client:
        yield client


@pytest.fixture
def stream(client: Client, server: EmbeddedBroker, worker: WorkerProcess) -> Callable[..., Stream]:
    """Begins a job of about two seconds, or of `tokens`, with subscribers behind `url`."""
    return lambda tokens=200, url=server.url: Stream(client, url, tokens)


@pytest.fixture
def endless(stream: Callable[..., Stream]) -> Callable[..., Stream]:
    """Begins a job that is in mid-sentence until it is cancelled, however long a trouble takes."""
    return partial(stream, 100_000)
