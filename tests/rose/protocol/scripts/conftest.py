"""Scripts on a server of their own, whose settings and users a test may change."""

from collections.abc import Iterator

import pytest

from rose_cli.local.broker import EmbeddedBroker


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(fake=False) as server:
        yield server


@pytest.fixture
def any_broker(server: EmbeddedBroker) -> EmbeddedBroker:
    return server
