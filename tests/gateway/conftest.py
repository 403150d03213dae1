"""A deployment for the tests of a file, and deployments of their own."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openai import OpenAI

from rose_cli.local.broker import EmbeddedBroker, find_redis_server
from tests.support.gateway import Deployment, running_deployment


@pytest.fixture(scope="module")
def deployment(
    request: pytest.FixtureRequest, _brokers: Callable[[bool], EmbeddedBroker]
) -> Iterator[Deployment]:
    """One for all tests of a file, which leave it as it is. The null engine echoes the prompt."""
    for name in [name for name in os.environ if name.startswith("ROSE_")]:
        pytest.fail(f"{name} is set")
    broker = _brokers(find_redis_server() is None)
    queue = f"gateway-{os.getpid()}-{request.module.__name__.rpartition('.')[2]}"
    with running_deployment(broker.url, queue) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def ai(deployment: Deployment) -> Iterator[OpenAI]:
    with deployment.openai() as client:
        yield client


@pytest.fixture
def start_deployment(broker: EmbeddedBroker, queue: str) -> Iterator[Callable[..., Deployment]]:
    """Starts deployments with settings of their own, as `running_deployment` takes them."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Deployment:
            return stack.enter_context(running_deployment(broker.url, queue, **settings))

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
def start_own_deployment(
    own_broker: EmbeddedBroker, queue: str
) -> Iterator[Callable[..., Deployment]]:
    """As `start_deployment`, on `own_broker`."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Deployment:
            return stack.enter_context(running_deployment(own_broker.url, queue, **settings))

        yield start
