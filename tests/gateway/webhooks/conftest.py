"""Services of a gateway on a Redis of the test's own, a worker that echoes, and a receiver."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.services import Services
from tests.support.batch_lines import opened_services
from tests.support.echo import serving
from tests.support.webhook_receiver import LOOPBACK, Receiver, receiving

OpenServices = Callable[..., Any]


@pytest.fixture
def open_services(own_broker: EmbeddedBroker, queue: str, tmp_path: Path) -> OpenServices:
    """Nobody tells webhooks yet. What is not received is sent again soon."""

    def opened(**settings: Any) -> Any:
        given = {
            "storage": str(tmp_path),
            "webhook_networks": LOOPBACK,
            "webhook_pause_s": 0.05,
            "webhook_max_pause_s": 0.2,
            **settings,
        }
        return opened_services(own_broker.url, queue, **given)

    return opened


@pytest.fixture
async def services(
    own_broker: EmbeddedBroker, queue: str, open_services: OpenServices
) -> AsyncIterator[Services]:
    with serving("w", own_broker.url, queue=queue):
        async with open_services() as services:
            yield services


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def own_raw(own_broker: EmbeddedBroker) -> Iterator[redis.Redis]:
    with redis.Redis(port=own_broker.port, protocol=2) as client:
        yield client
