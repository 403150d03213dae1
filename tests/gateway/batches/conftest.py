"""Services of a gateway on a Redis of the test's own, with and without a worker."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_gateway.services import Services
from tests.support.batch_lines import opened_services
from tests.support.echo import SLOW, serving

OpenServices = Callable[..., Any]


@pytest.fixture
def open_services(own_broker: EmbeddedBroker, queue: str, tmp_path: Path) -> OpenServices:
    """Nobody runs batches behind it yet. A runner that is silent is dead after a second."""

    def opened(**settings: Any) -> Any:
        given = {"storage": str(tmp_path), "batch_lease_s": 1, **settings}
        return opened_services(own_broker.url, queue, **given)

    return opened


@pytest.fixture
async def services(
    own_broker: EmbeddedBroker, queue: str, open_services: OpenServices
) -> AsyncIterator[Services]:
    """With a worker."""
    with serving("w", own_broker.url, queue=queue):
        async with open_services() as services:
            yield services


@pytest.fixture
def slow_worker(own_broker: EmbeddedBroker, queue: str) -> WorkerProcess:
    """Four slots, 50 tokens a second."""
    with serving("w", own_broker.url, queue=queue, max_batch_size=4, **SLOW) as worker:
        yield worker


@pytest.fixture
def own_raw(own_broker: EmbeddedBroker) -> redis.Redis:
    with redis.Redis(port=own_broker.port, protocol=2) as client:
        yield client
