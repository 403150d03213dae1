"""Claims that become jobs."""

import asyncio

import pytest
import redis

from rose.protocol import GROUP, Partition
from rose.protocol.calls import new_take_id
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from rose_worker.admission import Admission
from rose_worker.broker import Broker
from rose_worker.engine import EngineThread
from rose_worker.jobs import Claim, HeldJob, JobTable
from rose_worker.metrics import Metrics
from rose_worker.null_engine import NullEngine
from rose_worker.preparation import Preparation
from rose_worker.publisher import Publisher
from rose_worker.settings import WorkerSettings
from rose_worker.tasks import cancel_all
from tests.support.bench import until
from tests.support.listeners import assert_echo

PROMPT = "the quick brown fox"
TOKENS = 50


@pytest.mark.parametrize("lost", ["the job", "its take"])
async def test_a_worker_that_is_given_a_job_again_begins_it_anew(
    broker: EmbeddedBroker,
    queue: str,
    client: Client,
    partition: Partition,
    raw: redis.Redis,
    lost: str,
) -> None:
    # given: a worker that does not publish yet
    settings = WorkerSettings(redis_url=broker.url, queue=queue, engine="null")
    own, engine, table = Broker(settings, "w"), NullEngine(settings), JobTable(8)
    thread = EngineThread(engine, max_reports=100, min_step_s=0.001)
    metrics = Metrics(engine.model, engine.capacity)
    publisher = Publisher(own, thread, table, metrics)
    preparation = Preparation(None)
    admission = Admission(settings, own, engine, thread, table, publisher, metrics, preparation)
    thread.start(publisher.collect)
    await own.start()

    async def begin() -> HeldJob | None:
        fetched = await own.fetch(partition, 1, take_id=new_take_id())
        table.claim(Claim(entry, taken=fetched.begun.get(entry.key)) for entry in fetched.entries)
        await admission.begin(partition, table.claims_of(partition))
        return table.get("again")

    client.submit(PROMPT, job_id="again", max_new_tokens=TOKENS)
    state = partition.state("again")
    submitted = raw.hgetall(state)
    earlier = await begin()
    await until(lambda: earlier and earlier.logged > 3)
    # when: it is submitted again, or the heir of the primary has it as it was
    if lost == "the job":
        raw.delete(*raw.keys(f"rose:{{{queue}:0}}:*"))
        await own.create_groups(partition)
        client.submit(PROMPT, job_id="again", max_new_tokens=TOKENS)
    else:
        raw.delete(state)
        raw.hset(state, mapping=submitted)
        raw.xack(submitted[b"stream"], GROUP, submitted[b"entry"])
        raw.xgroup_setid(submitted[b"stream"], GROUP, "0")
    again = await begin()
    publishing = asyncio.create_task(publisher.run())
    # then
    assert again is not earlier
    await until(lambda: thread.ended.done() or client.job("again").status().status == "finished")
    assert thread.alive
    assert_echo(list(client.job("again").stream(timeout_s=90)), PROMPT, TOKENS)
    await cancel_all([publishing])
    await thread.stop()
    await own.close()
