"""Fixtures of pytest: `pytest_plugins = ["rose_producer.testing.fixtures"]` in a conftest.py."""

from collections.abc import Iterator

import pytest

from rose_producer.testing import FakeQueue, FakeRedis


@pytest.fixture(scope="session")
def rose_redis() -> Iterator[FakeRedis]:
    """A Redis in this process, for all tests."""
    with FakeRedis() as server:
        yield server


@pytest.fixture
def rose_queue(rose_redis: FakeRedis, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeQueue]:
    """An empty queue for each test. A `Client()` without arguments finds it, and so does a process
    that the test starts."""
    with FakeQueue(rose_redis.url) as queue:
        monkeypatch.setenv("ROSE_REDIS_URL", queue.url)
        monkeypatch.setenv("ROSE_QUEUE", queue.name)
        monkeypatch.setenv("ROSE_PARTITIONS", "1")
        yield queue
