"""What a listener asks for in the round trip of its subscription."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from rose.transport import CONNECTION_LOST, AsyncSubscriptions
from rose.transport.multiplexed import Inbox
from rose_cli.local.broker import EmbeddedBroker, find_redis_server, free_port
from rose_producer import ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.proxy import Proxy

_numbers = itertools.count()


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


@pytest.fixture
async def subscriptions(any_broker: EmbeddedBroker) -> AsyncIterator[AsyncSubscriptions]:
    async with connected_to(any_broker.url) as subscriptions:
        yield subscriptions


@pytest.fixture
async def own_subscriptions(own_redis: EmbeddedBroker) -> AsyncIterator[AsyncSubscriptions]:
    """Of a server that takes commands from listeners."""
    async with connected_to(own_redis.url) as subscriptions:
        yield subscriptions


@asynccontextmanager
async def connected_to(url: str) -> AsyncIterator[AsyncSubscriptions]:
    """Their connection is open, so that they know what the server speaks."""
    subscriptions = subscriptions_at(url)
    async with subscriptions.listen("first"):
        pass
    yield subscriptions
    await subscriptions.aclose()


def subscriptions_at(url: str) -> AsyncSubscriptions:
    return AsyncSubscriptions(ProducerSettings(redis_url=url))  # type: ignore[arg-type]


async def test_it_is_looked_for_after_the_subscription(
    subscriptions: AsyncSubscriptions, any_broker: EmbeddedBroker, key: str
) -> None:
    """A server that takes no other commands from listeners leaves it to the caller."""
    with redis.Redis(port=any_broker.port, protocol=2) as client:
        for number in range(20):
            # given
            client.set(key, number)
            # when
            async with subscriptions.listen(key, [("GET", key), ("EXISTS", key)]) as inbox:
                # then
                assert inbox.found == (
                    [str(number).encode(), 1] if any_broker.kind != "fakeredis" else None
                )
                client.publish(key, f"after {number}")
                assert await inbox.get(60) == f"after {number}".encode()


@needs_redis_server
async def test_what_is_found_may_look_like_a_message(
    own_subscriptions: AsyncSubscriptions, admin: redis.Redis, key: str
) -> None:
    # given: somebody has written what Redis says of messages
    admin.hset(key, mapping={"a": "message", "b": "first", "c": "text"})
    # when
    async with own_subscriptions.listen(key, [("HMGET", key, "a", "b", "c")]) as inbox:
        # then
        assert inbox.found == [[b"message", b"first", b"text"]]
        assert inbox.get_ready() is None


@needs_redis_server
async def test_a_look_that_is_refused_concerns_no_other(
    own_subscriptions: AsyncSubscriptions, admin: redis.Redis, key: str
) -> None:
    # given
    admin.set(key, "text")
    async with own_subscriptions.listen("other") as other:
        # when
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            async with own_subscriptions.listen(key, [("HGET", key, "a"), ("GET", key)]):
                pass
        # then: the replies behind it are nobody else's
        async with own_subscriptions.listen(key, [("GET", key)]) as inbox:
            assert inbox.found == [b"text"]
        admin.publish("other", "x")
        assert await other.get(60) == b"x"


async def test_hundreds_at_once_look_no_more_than_redis_has_room_for(
    subscriptions: AsyncSubscriptions, any_broker: EmbeddedBroker, key: str
) -> None:
    # given
    async def listen(number: int) -> Inbox:
        async with subscriptions.listen(f"{key}-{number}", [("ECHO", str(number))]) as inbox:
            return inbox

    # when
    inboxes = await asyncio.gather(*map(listen, range(300)))
    # then: the others ask elsewhere
    found = {number: inbox.found for number, inbox in enumerate(inboxes) if inbox.found is not None}
    assert found == {number: [str(number).encode()] for number in found}
    assert len(found) == (0 if any_broker.kind == "fakeredis" else 32)


@needs_redis_server
async def test_one_who_gives_up_leaves_the_replies_in_their_order(
    own_subscriptions: AsyncSubscriptions, key: str
) -> None:
    # given
    async def listen() -> None:
        async with own_subscriptions.listen(f"{key}-mine", [("ECHO", "mine")]):
            await asyncio.sleep(3600)

    for loop_turns in range(1, 8):
        task = asyncio.create_task(listen())
        for _ in range(loop_turns):
            await asyncio.sleep(0)
        # when
        task.cancel()
        await asyncio.wait([task])
        # then
        async with own_subscriptions.listen(key, [("ECHO", "yours")]) as inbox:
            assert inbox.found == [b"yours"]


@needs_redis_server
async def test_a_connection_that_is_lost_meanwhile_is_told(own_redis: EmbeddedBroker) -> None:
    with Proxy(own_redis.port) as proxy:
        subscriptions = subscriptions_at(proxy.url)
        async with subscriptions.listen("first"):
            pass
        # given
        proxy.swallow = b"mine"
        # when
        with pytest.raises(CONNECTION_LOST):
            async with subscriptions.listen("c", [("ECHO", "mine")]) as inbox:
                await inbox.get(60)
        # then: the next one has what it asks for
        async with subscriptions.listen("d"), subscriptions.listen("e", [("ECHO", "x")]) as inbox:
            assert inbox.found == [b"x"]
        await subscriptions.aclose()


@needs_redis_server
async def test_a_proxy_that_hangs_up_on_the_newer_protocol_serves_listeners(
    own_redis: EmbeddedBroker,
) -> None:
    # given
    with Proxy(own_redis.port) as proxy:
        proxy.swallow = b"HELLO"
        subscriptions = subscriptions_at(proxy.url)
        # when
        with pytest.raises(CONNECTION_LOST):
            async with subscriptions.listen("c") as inbox:
                await inbox.get(60)
        # then
        await serves_listeners(subscriptions, own_redis.port)


@needs_redis_server
def test_a_server_that_does_not_know_the_newer_protocol_serves_listeners(
    own_redis: EmbeddedBroker, tmp_path: Path
) -> None:
    # given
    server, port = find_redis_server(), free_port()
    assert server is not None
    options = ("--port", str(port), "--save", "", "--rename-command", "HELLO", "unknown")
    process = own_redis.begin([server, *options], tmp_path / "log")
    try:
        wait_until(partial(is_open, port))
        # when / then
        asyncio.run(serves_listeners(subscriptions_at(f"redis://127.0.0.1:{port}"), port))
    finally:
        process.kill()
        process.wait()


def is_open(port: int) -> bool:
    with redis.Redis(port=port, protocol=2, retry=Retry(NoBackoff(), 0)) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False


async def serves_listeners(subscriptions: AsyncSubscriptions, port: int) -> None:
    """All but what they ask for with their subscriptions."""
    with redis.Redis(port=port, protocol=2) as client:
        for number in range(3):
            async with subscriptions.listen("c", [("ECHO", "x")]) as inbox:
                assert inbox.found is None
                client.publish("c", number)
                assert await inbox.get(60) == str(number).encode()
    await subscriptions.aclose()
