"""Thousands of callers and one client: how many connections Redis sees."""

import asyncio
from collections.abc import Iterator
from unittest import mock

import pytest
import redis

from rose.transport import async_server, multiplexed
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, AsyncJob, ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import until
from tests.support.echo import echoed, serving
from tests.support.proxy import Proxy

pytestmark = needs_redis_server

CALLERS = 2000
PROMPT = "abc"


@pytest.fixture
def soon_idle() -> Iterator[None]:
    """Idle connections are closed after a second, not after half a minute."""
    with (
        mock.patch.object(async_server, "IDLE_S", 1.0),
        mock.patch.object(multiplexed, "IDLE_S", 1.0),
    ):
        yield


async def stream(job: AsyncJob) -> tuple[int, ...]:
    result = await job.result(timeout_s=120)
    return result.token_ids


@pytest.mark.usefixtures("soon_idle")
async def test_thousands_of_submits_and_streams_share_a_few_connections(
    own_redis: EmbeddedBroker, queue: str
) -> None:
    with Proxy(own_redis.port) as proxy:
        settings = ProducerSettings(redis_url=proxy.url, queue=queue, redis_timeout_s=4)  # type: ignore[arg-type]
        async with AsyncClient(settings) as client:
            # when: all at once, and nobody serves them yet
            jobs = await asyncio.gather(
                *(client.submit(PROMPT, max_new_tokens=3) for _ in range(CALLERS))
            )
            streams = [asyncio.create_task(stream(job)) for job in jobs]
            with serving("w", own_redis.url, queue=queue, max_batch_size=512):
                answers = await asyncio.gather(*streams)
            # then
            assert set(answers) == {echoed(PROMPT.encode(), 3)}
            assert len({job.id for job in jobs}) == CALLERS
            assert proxy.peak <= 64
            # and when: nobody calls any more
            await until(lambda: proxy.open == 0)
            # then
            assert (await client.queue_status()).waiting["normal"] == 0


async def test_a_redis_that_allows_few_clients_serves_thousands_of_callers(
    own_redis: EmbeddedBroker, admin: redis.Redis, queue: str
) -> None:
    # given: room for two connections beside this one
    admin.config_set("maxclients", 3)
    url = own_redis.url
    async with AsyncClient(redis_url=url, queue=queue) as client:
        # when
        jobs = await asyncio.gather(*(client.submit(PROMPT) for _ in range(CALLERS)))
        async with asyncio.timeout(200):
            statuses = await asyncio.gather(*(job.status() for job in jobs))
    # then
    assert {status.status for status in statuses} == {"queued"}
    assert admin.info("stats")["rejected_connections"] > 0
