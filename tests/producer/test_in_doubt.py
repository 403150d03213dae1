"""A submit whose answer was lost names the ids with which a repeat doubles nothing."""

from collections.abc import Iterator

import pytest
import redis

from rose.errors import BrokerUnavailable, QueueFull, RedisFull
from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, Client, Request
from tests.conftest import needs_redis_server
from tests.support.proxy import Proxy
from tests.support.troubles import out_of_memory

pytestmark = needs_redis_server

#: It never repeats a call.
IMPATIENT = {"redis_timeout_s": 60, "redis_retries": 0}


@pytest.fixture
def proxy(broker: EmbeddedBroker) -> Iterator[Proxy]:
    with Proxy(broker.port) as proxy:
        yield proxy


@pytest.fixture
def unlucky(proxy: Proxy, queue: str) -> Iterator[Client]:
    """Behind the proxy, which may swallow answers."""
    with Client(redis_url=proxy.url, queue=queue, **IMPATIENT) as client:
        client.queue_status()
        yield client


def waiting(raw: redis.Redis, partition: Partition) -> int:
    return sum(raw.xlen(stream) for stream in partition.all_jobs)


def test_a_repeat_with_the_id_in_doubt_is_the_same_job(
    proxy: Proxy, unlucky: Client, raw: redis.Redis, partition: Partition
) -> None:
    # given: Redis carries the call out, and its answer is lost
    proxy.swallow = b"EVALSHA"
    with pytest.raises(BrokerUnavailable) as lost:
        unlucky.submit("x")
    (in_doubt,) = lost.value.in_doubt
    assert waiting(raw, partition) == 1
    # when
    again = unlucky.submit("x", job_id=in_doubt)
    # then
    assert again.id == in_doubt
    assert waiting(raw, partition) == 1
    assert lost.value.accepted == ()


def test_of_many_those_in_doubt_follow_the_accepted_ones(
    proxy: Proxy, unlucky: Client, raw: redis.Redis, partition: Partition
) -> None:
    # given: the answer to the second of three round trips is lost
    requests = [Request(f"job {n}") for n in range(1200)]
    proxy.swallow = b"job 700"
    # when
    with pytest.raises(BrokerUnavailable) as lost:
        unlucky.submit_many(requests)
    accepted, in_doubt = lost.value.accepted, lost.value.in_doubt
    assert waiting(raw, partition) > len(accepted) > 0
    rest = requests[len(accepted) :]
    known = [
        Request(request.prompt, job_id=job_id)
        for request, job_id in zip(rest, in_doubt, strict=False)
    ]
    jobs = unlucky.submit_many([*known, *rest[len(in_doubt) :]])
    # then
    assert waiting(raw, partition) == 1200
    assert len({*accepted, *(job.id for job in jobs)}) == 1200


def test_what_was_refused_is_not_in_doubt(
    broker: EmbeddedBroker, queue: str, raw: redis.Redis
) -> None:
    with Client(redis_url=broker.url, queue=queue, max_queued_jobs=2, **IMPATIENT) as client:
        # when
        with out_of_memory(raw), pytest.raises(RedisFull) as no_memory:
            client.submit("x")
        with pytest.raises(QueueFull) as full:
            client.submit_many(["x"] * 5)
        # then
        assert len(full.value.accepted) == 2
        assert full.value.in_doubt == no_memory.value.in_doubt == ()


async def test_the_asyncio_client_names_them_too(proxy: Proxy, queue: str) -> None:
    async with AsyncClient(redis_url=proxy.url, queue=queue, **IMPATIENT) as client:
        # given
        await client.submit("x")
        proxy.swallow = b"EVALSHA"
        # when
        with pytest.raises(BrokerUnavailable) as lost:
            await client.submit("y")
        # then
        (in_doubt,) = lost.value.in_doubt
        assert (await client.submit("y", job_id=in_doubt)).id == in_doubt
        assert (await client.queue_status()).waiting["normal"] == 2
