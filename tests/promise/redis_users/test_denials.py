"""What Redis refuses to the shipped users, and to who has no password."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, ResponseError
from redis.retry import Retry

from rose.protocol import GROUP
from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.users_at_work import PARTITION, USERS, url

pytestmark = needs_redis_server


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("producer", ["XREADGROUP", "GROUP", GROUP, "me", "STREAMS", "{p}jobs:normal", ">"]),
        ("producer", ["XRANGE", "{p}jobs:normal", "-", "+"]),
        ("producer", ["XRANGE", "{p}dead", "-", "+"]),
        ("producer", ["XTRIM", "{p}jobs:normal", "MAXLEN", "0"]),
        ("producer", ["EXPIRE", "{p}jobs:normal", "0"]),
        ("producer", ["SET", "{p}state:0-x", "gone"]),
        ("producer", ["HSET", "{p}model", "context_tokens", "1"]),
        ("producer", ["EVAL", "return redis.call('DEL', KEYS[1])", "1", "{p}jobs:normal"]),
        ("producer", ["EVAL", "return redis.call('GET', 'other')", "0"]),
        ("producer", ["GET", "{p}idempotency:other:x"]),
        ("producer", ["EVAL", "return redis.call('GET', KEYS[1])", "1", "{p}idempotency:other:x"]),
        ("producer", ["SCRIPT", "KILL"]),
        ("producer", ["PSUBSCRIBE", "*"]),
        ("producer", ["SUBSCRIBE", "other"]),
        ("worker", ["SET", "{p}idempotency:x", "0-x"]),
        ("worker", ["XGROUP", "DESTROY", "{p}jobs:normal", GROUP]),
        ("worker", ["HSET", "other", "a", "b"]),
        ("scaler", ["XRANGE", "{p}jobs:normal", "-", "+"]),
        ("scaler", ["XINFO", "GROUPS", "other"]),
        ("scaler", ["XLEN", "{p}dead"]),
        ("scaler", ["EVAL", "return redis.call('ZREM', KEYS[1], 'a')", "1", "{p}shares:ready"]),
        ("scaler", ["EVAL", "return redis.call('ZCARD', KEYS[1])", "1", "{p}shares:heads"]),
        ("operator", ["XRANGE", "{p}tokens:0-x", "-", "+"]),
        ("gateway", ["HSET", "rose:gateway:keys", "0", "a key of its own"]),
        ("gateway", ["HGETALL", "rose:gateway:keys"]),
        ("gateway", ["GET", "{p}idempotency:producer:x"]),
        ("gateway", ["XRANGE", "{p}jobs:normal", "-", "+"]),
        ("producer", ["HGET", "rose:gateway:keys", "0"]),
        ("worker", ["HGET", "rose:gateway:keys", "0"]),
    ],
)
def test_what_a_user_has_no_business_with_is_refused(
    server: EmbeddedBroker, user: str, words: list[str]
) -> None:
    prefix = PARTITION.state("").removesuffix("state:")
    refusal = r"[Nn]o permissions|can't run this command|can't access"
    with (
        redis.Redis.from_url(url(user, server.port), protocol=2) as client,
        pytest.raises(ResponseError, match=refusal),
    ):
        client.execute_command(*(word.replace("{p}", prefix) for word in words))


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "command",
    [
        *("KEYS *", "SCAN 0", "FLUSHALL", "CONFIG GET *", "GET other", "DEL other"),
        *("ACL LIST", "SCRIPT FLUSH", "SHUTDOWN", "MONITOR", "CLIENT LIST", "CLIENT KILL ID 1"),
        *("CLIENT PAUSE 9", "FUNCTION LIST", "INFO", "SAVE", "REPLICAOF NO ONE", "MULTI"),
    ],
)
def test_nobody_administers(server: EmbeddedBroker, user: str, command: str) -> None:
    with (
        redis.Redis.from_url(url(user, server.port), protocol=2) as client,
        pytest.raises(NoPermissionError),
    ):
        client.execute_command(*command.split())


@pytest.mark.parametrize("user", [*USERS, "default"])
def test_there_is_no_way_in_without_a_password(server: EmbeddedBroker, user: str) -> None:
    at_once = Retry(NoBackoff(), 0)
    # Without driver_info a connection begins with the test's own command.
    with redis.Redis(port=server.port, protocol=2, retry=at_once, driver_info=None) as nobody:
        with pytest.raises(redis.AuthenticationError, match="Authentication required"):
            nobody.ping()
        for password in ("", "nopass", f"{user.upper()}_SHA256"):
            with pytest.raises(redis.AuthenticationError, match="invalid username-password"):
                nobody.execute_command("AUTH", user, password)


def test_an_operator_ends_a_script_that_does_not_end(
    server: EmbeddedBroker, admin: redis.Redis
) -> None:
    # given: a producer whose script holds Redis up
    admin.config_set("busy-reply-threshold", 100)
    key = PARTITION.load
    with (
        redis.Redis.from_url(url("producer", server.port), protocol=2, socket_timeout=60) as bad,
        redis.Redis.from_url(url("operator", server.port), protocol=2) as operator,
        ThreadPoolExecutor(1) as pool,
    ):
        endless = pool.submit(bad.execute_command, "EVAL", "while true do end", "1", key)

        def killed() -> bool:
            with contextlib.suppress(ResponseError):  # NOTBUSY: it has not begun
                return bool(operator.execute_command("SCRIPT KILL"))
            return False

        # when
        wait_until(killed)
        # then
        with pytest.raises(ResponseError, match="killed by user"):
            endless.result(60)
        assert admin.ping()
