"""A Redis with the shipped users, and its administrator."""

from collections.abc import Iterator

import pytest
import redis

from rose_cli.local.broker import EmbeddedBroker
from tests.support.redis_users import guarded_server


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with guarded_server(tmp_path_factory.mktemp("acl")) as server:
        yield server


@pytest.fixture
def admin(shipped: EmbeddedBroker) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(shipped.url, protocol=2) as admin:
        yield admin
