"""What one client listens to: the asyncio one on one connection, the other on a few kept ones."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from unittest import mock

import pytest
import redis

from rose.errors import BrokerUnavailable
from rose.transport import CONNECTION_LOST, AsyncSubscriptions
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, token, wait_until
from tests.support.proxy import Proxy

INBOX = 10
_numbers = itertools.count()


@pytest.fixture
def settings(any_broker: EmbeddedBroker) -> ProducerSettings:
    return ProducerSettings(redis_url=any_broker.url, redis_timeout_s=30)  # type: ignore[arg-type]


@pytest.fixture
async def subscriptions(settings: ProducerSettings) -> AsyncIterator[AsyncSubscriptions]:
    subscriptions = AsyncSubscriptions(settings, inbox_size=INBOX)
    yield subscriptions
    await subscriptions.aclose()


@pytest.fixture
def publish(any_broker: EmbeddedBroker) -> Iterator[redis.Redis]:
    with redis.Redis(port=any_broker.port, protocol=2) as client:
        yield client


@pytest.fixture
def channel() -> str:
    return f"channel-{next(_numbers)}"


def listeners(client: redis.Redis, channel: str) -> int:
    return int(client.pubsub_numsub(channel)[0][1])


async def gone(client: redis.Redis, channel: str) -> None:
    await asyncio.to_thread(wait_until, lambda: listeners(client, channel) == 0)


async def test_nothing_published_after_listen_is_missed(
    subscriptions: AsyncSubscriptions, publish: redis.Redis, channel: str
) -> None:
    for number in range(20):
        async with subscriptions.listen(channel) as inbox:
            publish.publish(channel, number)
            assert await inbox.get(60) == str(number).encode()
            assert await inbox.get(0.001) is None


async def test_a_wait_ends_in_its_own_time_whatever_the_one_before_it_was_given(
    subscriptions: AsyncSubscriptions, publish: redis.Redis, channel: str
) -> None:
    async with subscriptions.listen(channel) as inbox, asyncio.timeout(30):
        # given: a long wait that a message has ended
        publish.publish(channel, "a")
        assert await inbox.get(3600) == b"a"
        # when / then: a short one does not last as long
        assert await inbox.get(0.01) is None
        # given: a short one that a message has ended
        short = asyncio.create_task(inbox.get(0.5))
        await asyncio.sleep(0)
        publish.publish(channel, "b")
        assert await short in (b"b", None)
        # when / then: a long one does not end with it
        long = asyncio.create_task(inbox.get(3600))
        await asyncio.sleep(0.6)
        publish.publish(channel, "c")
        assert await long in (b"b", b"c")


async def test_two_may_listen_to_the_same_channel(
    subscriptions: AsyncSubscriptions, publish: redis.Redis, channel: str
) -> None:
    async with subscriptions.listen(channel) as first:
        async with subscriptions.listen(channel) as second:
            # when
            assert publish.publish(channel, "both") == 1
            # then
            assert (await first.get(60), await second.get(60)) == (b"both", b"both")
        # when: the one who is left
        publish.publish(channel, "one")
        assert await first.get(60) == b"one"
    await gone(publish, channel)


async def test_leaving_and_coming_back_at_once_do_not_meet(
    subscriptions: AsyncSubscriptions, publish: redis.Redis, channel: str
) -> None:
    """The confirmation of an earlier subscription is not taken for one of a later."""

    async def come_and_go(number: int) -> None:
        for _ in range(10):
            async with subscriptions.listen(channel) as inbox:
                publish.publish(channel, number)
                while await inbox.get(60) != str(number).encode():
                    continue

    await asyncio.gather(*(come_and_go(number) for number in range(5)))
    await gone(publish, channel)


async def test_one_who_gives_up_waiting_leaves_nothing_behind(
    subscriptions: AsyncSubscriptions, publish: redis.Redis, channel: str
) -> None:
    async def listen() -> None:
        async with subscriptions.listen(channel):
            raise AssertionError("not cancelled in time")

    for loop_turns in range(1, 6):
        task = asyncio.create_task(listen())
        for _ in range(loop_turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    async with subscriptions.listen(f"{channel}-after"):  # the commands before it have arrived
        assert listeners(publish, channel) == 0


async def test_a_listener_that_does_not_keep_up_is_told_and_costs_no_memory(
    subscriptions: AsyncSubscriptions, publish: redis.Redis, channel: str
) -> None:
    async with subscriptions.listen(channel) as slow, subscriptions.listen(channel) as other:
        # when: more than an inbox holds, while one of two does not look
        for number in range(INBOX + 3):
            publish.publish(channel, number)
            assert await other.get(60) == str(number).encode()
        # then: "look into the log", then what came since
        assert await slow.get(60) is None
        assert [await slow.get(60) for _ in range(3)] == [b"10", b"11", b"12"]
        assert await slow.get(0.001) is None


@needs_redis_server
async def test_a_killed_connection_is_told_to_all_and_opened_once(
    own_redis: EmbeddedBroker, admin: redis.Redis
) -> None:
    settings = ProducerSettings(redis_url=own_redis.url)  # type: ignore[arg-type]
    subscriptions = AsyncSubscriptions(settings)
    async with AsyncExitStack() as stack:
        inboxes = [
            await stack.enter_async_context(subscriptions.listen(f"c{n}")) for n in range(50)
        ]
        publish = admin.publish("c0", "before")
        # when
        assert admin.client_kill_filter(_type="pubsub") == publish == 1
        # then: what had come is still given
        assert await inboxes[0].get(60) == b"before"
        for inbox in inboxes:
            with pytest.raises(CONNECTION_LOST):
                await inbox.get(60)
    # when: all come back
    async with AsyncExitStack() as stack:
        back = [stack.enter_async_context(subscriptions.listen(f"c{n}")) for n in range(50)]
        inboxes = await asyncio.gather(*back)
        # then
        assert len(admin.client_list(_type="pubsub")) == 1
        admin.publish("c49", "after")
        assert await inboxes[49].get(60) == b"after"
    await subscriptions.aclose()


@needs_redis_server
async def test_a_channel_that_is_forbidden_concerns_no_other(
    own_redis: EmbeddedBroker, admin: redis.Redis
) -> None:
    # given
    rights = ("on", "nopass", "~*", "&mine*", "+@all")
    admin.execute_command("ACL", "SETUSER", "limited", *rights)
    url = f"redis://limited:x@127.0.0.1:{own_redis.port}"
    subscriptions = AsyncSubscriptions(ProducerSettings(redis_url=url))  # type: ignore[arg-type]
    async with subscriptions.listen("mine") as inbox:
        # when
        with pytest.raises(redis.exceptions.NoPermissionError):
            async with subscriptions.listen("yours"):
                pass
        # then
        admin.publish("mine", "x")
        assert await inbox.get(60) == b"x"
    await subscriptions.aclose()


@needs_redis_server
async def test_a_connection_that_says_nothing_is_found_dead(own_redis: EmbeddedBroker) -> None:
    with Proxy(own_redis.port) as proxy:
        settings = ProducerSettings(redis_url=proxy.url, redis_timeout_s=1)  # type: ignore[arg-type]
        subscriptions = AsyncSubscriptions(settings)
        async with subscriptions.listen("c") as inbox:
            # when: it is quiet but alive
            assert await inbox.get(2.2) is None
            # and when nothing comes through any more
            proxy.delay_s = 4
            # then
            with pytest.raises(CONNECTION_LOST):
                await inbox.get(90)
        proxy.heal()
        await subscriptions.aclose()


async def test_nobody_listens_to_what_is_closed(settings: ProducerSettings, channel: str) -> None:
    # given
    subscriptions = AsyncSubscriptions(settings)
    async with subscriptions.listen(channel) as inbox:
        # when
        await subscriptions.aclose()
        # then
        with pytest.raises(CONNECTION_LOST):
            await inbox.get(60)
        with pytest.raises(BrokerUnavailable, match="closed"):
            async with subscriptions.listen(channel):
                pass
    assert len(asyncio.all_tasks()) == 1


async def test_a_stream_that_does_not_keep_up_loses_nothing(
    bench: Bench, settings: ProducerSettings
) -> None:
    # given: a consumer that has stopped at the first event
    job, lease = bench.begin()
    async with AsyncClient(bench.client.settings) as client:
        small = AsyncSubscriptions(settings, inbox_size=2)
        with mock.patch.object(client, "_subscriptions", small):
            async with aclosing(client.job(job.id).stream(timeout_s=90)) as events:
                bench.append(lease, token(0))
                seen = [await anext(events)]
                # when: more comes than its inbox holds
                for index in range(1, 30):
                    bench.append(lease, token(index))
                    await asyncio.sleep(0)
                bench.finish(lease, 30)
                seen += [event async for event in events]
        await small.aclose()
    # then
    assert [event.index for event in seen] == list(range(31))
