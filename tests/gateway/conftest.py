"""A door for the tests of a file, and doors of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openai import OpenAI

from rose_cli.demo.broker import EmbeddedBroker, find_redis_server
from tests.support.gateway import RunningDoor, running_door


@pytest.fixture(scope="module")
def door(
    request: pytest.FixtureRequest, _brokers: Callable[[bool], EmbeddedBroker]
) -> Iterator[RunningDoor]:
    """One for all tests of a file, which leave it as it is. The null engine echoes the prompt."""
    for name in [name for name in os.environ if name.startswith("ROSE_")]:
        pytest.fail(f"{name} is set")
    broker = _brokers(find_redis_server() is None)
    queue = f"door-{os.getpid()}-{request.module.__name__.rpartition('.')[2]}"
    with running_door(broker.url, queue) as door:
        yield door


@pytest.fixture(scope="module")
def ai(door: RunningDoor) -> Iterator[OpenAI]:
    with door.openai() as client:
        yield client


@pytest.fixture
def start_door(broker: EmbeddedBroker, queue: str) -> Iterator[Callable[..., RunningDoor]]:
    """Starts doors with settings of their own, as `running_door` takes them."""
    with ExitStack() as stack:

        def start(**settings: Any) -> RunningDoor:
            return stack.enter_context(running_door(broker.url, queue, **settings))

        yield start


@pytest.fixture
def own_broker() -> Iterator[EmbeddedBroker]:
    """A Redis of this test's own: API keys are for all gateways of a Redis."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(params=["redis-server", "fakeredis"])
def each_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """As `own_broker`, of each kind in turn."""
    if request.param == "redis-server" and find_redis_server() is None:
        pytest.skip("needs a real redis-server on PATH")
    with EmbeddedBroker(fake=request.param == "fakeredis") as broker:
        yield broker


@pytest.fixture
def start_own_door(own_broker: EmbeddedBroker, queue: str) -> Iterator[Callable[..., RunningDoor]]:
    """As `start_door`, on `own_broker`."""
    with ExitStack() as stack:

        def start(**settings: Any) -> RunningDoor:
            return stack.enter_context(running_door(own_broker.url, queue, **settings))

        yield start
