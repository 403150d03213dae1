"""The worker's calls to Redis, where they are more than one call of the protocol."""

import pytest
import redis

from rose.protocol import Partition, decode_job
from rose.protocol.calls import Append
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, FinishedEvent
from rose_worker.broker import Broker
from rose_worker.settings import WorkerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, to_append, token


async def test_what_an_outage_has_piled_up_is_published_in_order(
    any_broker: EmbeddedBroker, queue: str, bench: Bench
) -> None:
    # given: more events than one script call takes, of two jobs in turn, and their ends
    jobs = bench.client.submit_many(["x", "y"])
    leases = [bench.start("w"), bench.start("w")]
    broker = Broker(WorkerSettings(redis_url=any_broker.url, queue=queue), "w")
    await broker.start()
    end = FinishedEvent(index=700, reason="eos", prompt_tokens=1)
    items = [
        to_append(lease, *(token(start + n) for n in range(100)))
        for start in range(0, 700, 100)
        for lease in leases
    ]
    items += [Append(lease, 700, end=end) for lease in leases]
    # when: and once more, after a reply that was lost
    first = await broker.publish(bench.partition, items)
    again = await broker.publish(bench.partition, items)
    # then
    assert first == ["OK"] * 16
    assert again == ["DUP"] * 16
    for job in jobs:
        assert [event.index for event in job.stream(timeout_s=90)] == list(range(701))
    await broker.close()


@needs_redis_server
async def test_a_key_of_tenants_that_was_made_anew_is_said_once(
    broker: EmbeddedBroker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    partition = Partition(queue)
    worker = Broker(WorkerSettings(redis_url=broker.url, queue=queue), "w")
    await worker.start()
    key = partition.load.removesuffix("load") + "shares:ready"
    with Client(redis_url=broker.url, queue=queue) as client:
        jobs = {client.submit("x", tenant=one).id for one in ("ann", "bob", "cy")}
        redis.Redis(port=broker.port).set(key, "somebody's")
        # when
        fetched = [(await worker.fetch(partition, 1)).entries for _ in jobs]
    # then
    assert {decode_job(entry.raw).id for (entry,) in fetched} == jobs
    assert caplog.text.count(f"overwritten the key {key}; it was rebuilt") == 1
    await worker.close()
