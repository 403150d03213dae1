"""Conversations in Redis: what a response needs of those before it is there, once, and goes."""

from collections.abc import AsyncIterator

import pytest
import redis

from rose import transport
from rose.errors import JobNotFound, JobTooLarge
from rose.protocol.keys import conversation_key
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.storage.conversations import MAX_BYTES, Conversations, Link, Turn
from rose_producer import ProducerSettings

FIRST = "0-0000"
KEY = conversation_key(FIRST)


@pytest.fixture
async def conversations(each_broker: EmbeddedBroker) -> AsyncIterator[Conversations]:
    client = transport.AsyncRedisClient(ProducerSettings(redis_url=each_broker.url))
    yield Conversations(client, result_ttl_s=60)
    await client.aclose()


@pytest.fixture
def own_raw(each_broker: EmbeddedBroker):
    with redis.Redis(port=each_broker.port, protocol=2) as client:
        yield client


def name(number: int) -> str:
    return f"0-{number:04}"


async def talk(conversations: Conversations, turns: int, size: int = 1) -> list[Link | None]:
    """The links of responses 0 to `turns`, each of which goes on from the one before."""
    links: list[Link | None] = [None]
    for number in range(turns):
        items = ({"text": f"{number}", "more": "x" * size},)
        links.append(await conversations.claim(Turn(name(number), links[-1], items)))
    return links


async def test_a_response_has_the_turns_before_it_the_oldest_first(
    conversations: Conversations,
) -> None:
    links = await talk(conversations, 5)

    for number, link in enumerate(links):
        before = await conversations.before(link)
        assert [item["text"] for item in before.items] == [str(n) for n in range(number)]


async def test_two_responses_may_go_on_from_one(conversations: Conversations) -> None:
    # given
    links = await talk(conversations, 2)
    # when: another one goes on from the first
    other = await conversations.claim(Turn(name(0), None, ({"text": "0"},)))
    # then
    assert [item["text"] for item in (await conversations.before(other)).items] == ["0"]
    assert [item["text"] for item in (await conversations.before(links[2])).items] == ["0", "1"]


async def test_a_turn_is_kept_once_however_many_follow(
    conversations: Conversations, own_raw: redis.Redis
) -> None:
    # when
    sizes = []
    for turns in (20, 40):
        own_raw.flushall()
        await talk(conversations, turns, size=1000)
        sizes.append(sum(map(len, own_raw.hvals(KEY))))
    # then
    assert sizes[1] < 2.1 * sizes[0]


async def test_what_is_deleted_in_the_middle_is_there_for_those_behind_it(
    conversations: Conversations,
) -> None:
    # given
    links = await talk(conversations, 3)
    # when
    for number in (0, 1):
        await conversations.forget(name(number), links[number])
    # then
    texts = [item["text"] for item in (await conversations.before(links[3])).items]
    assert texts == ["0", "1", "2"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
async def test_nothing_is_left_when_all_are_deleted(
    conversations: Conversations, own_raw: redis.Redis, order: tuple[int, ...]
) -> None:
    # given
    links = await talk(conversations, 3)
    # when: each of them, repeated
    for number in order:
        for _ in range(2):
            await conversations.forget(name(number), links[number])
    # then
    assert own_raw.hgetall(KEY) == {}


async def test_a_response_that_is_still_there_keeps_what_is_before_it(
    conversations: Conversations,
) -> None:
    # given: the last one of four is deleted, and the first two
    links = await talk(conversations, 3)
    for number in (3, 0, 1):
        await conversations.forget(name(number), links[number])
    # then: who goes on from the third has them
    again = await conversations.claim(Turn(name(2), links[2], ({"text": "2"},)))
    texts = [item["text"] for item in (await conversations.before(again)).items]
    assert texts == ["0", "1", "2"]


async def test_a_conversation_that_is_read_lives_longer_and_then_has_expired(
    conversations: Conversations, own_raw: redis.Redis
) -> None:
    # given
    links = await talk(conversations, 2)
    own_raw.expire(KEY, 5)
    # when
    await conversations.before(links[2])
    # then
    assert own_raw.ttl(KEY) > 60
    own_raw.delete(KEY)
    with pytest.raises(JobNotFound, match=f"resp_{name(1)}, a turn of this conversation"):
        await conversations.before(links[2])


async def test_one_that_is_too_long_is_not_read_to_its_end(conversations: Conversations) -> None:
    links = await talk(conversations, 3, size=MAX_BYTES // 2)

    with pytest.raises(JobTooLarge):
        await conversations.before(links[3])
