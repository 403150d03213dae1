"""A real redis-server with the shipped users and redis.conf."""

from collections.abc import Iterator

import pytest
import redis

from rose_cli.local.broker import EmbeddedBroker
from tests.support.redis_users import guarded_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with guarded_server(tmp_path_factory.mktemp("acl")) as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: EmbeddedBroker) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=2, socket_timeout=60) as admin:
        yield admin
