"""Two deployments in two databases of one Redis, whose queues and job ids have the same names."""

import asyncio
from collections.abc import Iterator

import pytest
import redis

from rose.errors import JobCancelled
from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, Client, Job, TokenEvent
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import SLOW, echoed, running, serving

pytestmark = needs_redis_server

QUEUE = "twice"
DATABASES = (0, 1)


@pytest.fixture
def urls(own_redis: EmbeddedBroker) -> Iterator[list[str]]:
    """A worker serves each of them."""
    urls = [f"redis://127.0.0.1:{own_redis.port}/{database}" for database in DATABASES]
    with (
        serving("w0", urls[0], queue=QUEUE, **SLOW),
        serving("w1", urls[1], queue=QUEUE, **SLOW),
    ):
        yield urls


def test_streams_of_the_same_id_are_each_of_their_own_database(urls: list[str]) -> None:
    async def answer(url: str, job_id: str, prompt: str, count: int) -> tuple[int, ...]:
        async with AsyncClient(redis_url=url, queue=QUEUE) as client:
            job = await client.submit(prompt, job_id=job_id, max_new_tokens=count)
            events = [event async for event in job.stream(timeout_s=90)]
            return sum((e.token_ids for e in events if isinstance(e, TokenEvent)), ())

    async def answers() -> list[tuple[int, ...]]:
        asked = [
            answer(url, f"order-{number}", prompt, count)
            for number in range(8)
            for url, prompt, count in zip(urls, ("a", "z"), (40, 25), strict=True)
        ]
        return await asyncio.gather(*asked)

    # when
    found = asyncio.run(answers())
    # then
    assert found == [echoed(b"a", 40), echoed(b"z", 25)] * 8


def test_a_cancel_is_of_one_database(urls: list[str], own_redis: EmbeddedBroker) -> None:
    # given
    with (
        Client(redis_url=urls[0], queue=QUEUE) as client,
        Client(redis_url=urls[1], queue=QUEUE) as other,
        redis.Redis(port=own_redis.port, protocol=2) as raw,
    ):
        jobs: list[Job] = [
            each.submit("x", job_id="order", max_new_tokens=100_000) for each in (client, other)
        ]
        wait_until(lambda: all(running(job) for job in jobs))
        # when
        channels = [Partition(QUEUE, database=database).control for database in DATABASES]
        with raw.pubsub(ignore_subscribe_messages=True) as listener:
            listener.psubscribe("rose:*:control*")
            listener.get_message(timeout=90)
            assert jobs[0].cancel()
            heard = listener.get_message(timeout=90)
        # then
        assert heard is not None
        assert heard["channel"].decode() == channels[0] != channels[1]
        with pytest.raises(JobCancelled):
            jobs[0].result(90)
        told = jobs[1].status().tokens
        wait_until(lambda: running(jobs[1], tokens=told + 20))
        jobs[1].cancel()
