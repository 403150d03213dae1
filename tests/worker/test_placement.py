"""Workers leave a conversation's next turn to the one that has the turn before."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
import redis

from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess, read_metrics
from rose_producer import Client
from rose_worker.null_engine import NullEngine
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import until, wait_until
from tests.support.echo import StartWorker, echoed

_SYSTEM = {"role": "system", "content": "A parrot."}


def _places(raw: redis.Redis, partition: Partition) -> bool:
    return raw.hget(partition.model, "placement") == b"1"


def _sum(workers: Sequence[WorkerProcess], name: str) -> float:
    return sum(read_metrics(worker.http_port).get(name, 0) for worker in workers)


@needs_redis_server
def test_a_conversation_stays_with_its_worker(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    workers = [start_worker(placement_s=5) for _ in range(2)]
    wait_until(lambda: _places(raw, partition))
    client.submit("x", max_new_tokens=1).result(90)  # the client knows of it from now on
    numbers = count()

    def converse() -> None:
        """So short that no worker learns how fast the null engine is."""
        messages = [_SYSTEM, {"role": "user", "content": f"question {next(numbers)}"}]
        for _ in range(2):
            job = client.submit(messages, max_new_tokens=3)
            text = "".join(message["content"] for message in messages).encode()
            assert len(text) < 64
            assert job.result(90).token_ids == echoed(text, 3)
            messages += ({"role": "assistant", "content": "so"}, {"role": "user", "content": "?"})

    def has_waited() -> bool:
        converse()
        return _sum(workers, "rose_placement_wait_seconds_count") > 2

    # when / then
    wait_until(has_waited)
    assert _sum(workers, "rose_placed_tokens_total") > 0
    # when: one leaves
    assert workers.pop().terminate() == 0
    # then
    converse()


def test_nothing_of_it_is_in_redis_without_the_setting(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    for _ in range(2):
        start_worker()
    # when
    for _ in range(2):
        messages = [_SYSTEM, {"role": "user", "content": "one " * 500}]
        client.submit(messages, max_new_tokens=1).result(90)
    # then
    assert raw.keys(partition.load.replace(":load", ":placement*")) == []
    assert raw.hget(partition.model, "placement") is None


async def test_a_worker_without_a_prefix_cache_places_no_jobs(
    broker: EmbeddedBroker,
    queue: str,
    raw: redis.Redis,
    partition: Partition,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # given
    settings = WorkerSettings(redis_url=broker.url, queue=queue, placement_s=1, http_port=0)

    def load() -> NullEngine:
        engine = NullEngine(settings)
        engine.model = replace(engine.model, caches_prefixes=False)
        return engine

    # when
    worker = asyncio.create_task(Worker(settings, load).run())
    try:
        await until(lambda: raw.hget(partition.model, "name") == b"null")
    finally:
        worker.cancel()
        await asyncio.wait([worker])
    # then
    assert raw.hget(partition.model, "placement") is None
    assert raw.exists(partition.placing) == 0
    assert "the engine has no prefix cache" in caplog.text
