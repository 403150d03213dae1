"""What a caller is told of a server that is not what this project needs."""

import pytest
import redis

from rose.errors import BrokerUnavailable
from rose.transport import broker_errors
from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server


@needs_redis_server
@pytest.mark.parametrize("words", [("EVAL", "no Lua", 0), ("NOSUCHCOMMAND", "a")])
def test_a_server_that_is_too_old_is_told_from_one_that_is_away(
    own_redis: EmbeddedBroker, words: tuple[str | int, ...]
) -> None:
    with (
        redis.Redis(port=own_redis.port, protocol=2) as client,
        pytest.raises(BrokerUnavailable, match=r"must be Redis 7\.0") as caught,
        broker_errors(),
    ):
        client.execute_command(*words)
    assert "is it running" not in str(caught.value)
