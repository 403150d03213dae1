"""One worker reads the queue for the gauges of all."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import redis
from prometheus_client import generate_latest
from pydantic import SecretStr

from rose.protocol import GROUP, RELEASED, Partition, Priority
from rose_cli.local.broker import EmbeddedBroker
from rose_worker.broker import Broker
from rose_worker.engine import ModelInfo
from rose_worker.jobs import JobTable
from rose_worker.metrics import Metrics
from rose_worker.settings import WorkerSettings
from rose_worker.tasks import cancel_all
from rose_worker.watch import Watch
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, until

MODEL = ModelInfo("m", 100, 4, "cpu", "float32")
INTERVAL_S = 0.05
#: It lapses when a test says so.
LEASE_S = 300


class Watcher:
    """What of a worker looks at the queue."""

    def __init__(self, settings: WorkerSettings, name: str) -> None:
        self.broker = Broker(settings, name)
        self.metrics = Metrics(MODEL, capacity=1)
        self.watch = Watch(
            self.broker, self.metrics, MODEL, JobTable(1), lambda _: None, INTERVAL_S, LEASE_S
        )
        self._running: asyncio.Task[None] | None = None

    def says(self, line: str) -> bool:
        return f"\nrose_{line}\n" in generate_latest(self.metrics.registry).decode()

    @property
    def reads(self) -> bool:
        return "\nrose_queue_lag_jobs{" in generate_latest(self.metrics.registry).decode()

    def start(self) -> None:
        self._running = asyncio.create_task(self.watch.run())

    async def stop(self) -> None:
        """At once, as a killed worker."""
        if self._running is not None:
            await cancel_all([self._running])
            self._running = None


Watchers = Callable[[str], Watcher]


@asynccontextmanager
async def watching(url: str, queue: str) -> AsyncIterator[Watchers]:
    settings = WorkerSettings(redis_url=SecretStr(url), queue=queue, redis_retries=1)
    started: list[Watcher] = []

    def watcher(name: str) -> Watcher:
        started.append(Watcher(settings, name))
        return started[-1]

    yield watcher
    for worker in started:
        await worker.stop()
        await worker.broker.close()


@pytest.fixture
async def watchers(any_broker: EmbeddedBroker, queue: str) -> AsyncIterator[Watchers]:
    async with watching(any_broker.url, queue) as watcher:
        yield watcher


async def test_one_reads_until_it_is_gone_then_another(watchers: Watchers, bench: Bench) -> None:
    # given
    first, second = watchers("first"), watchers("second")
    await first.broker.start()
    first.start()
    await until(lambda: first.reads)
    second.start()
    await until(lambda: second.says('ready{model="m"} 1.0'))
    # then: some looks later still
    await asyncio.sleep(5 * INTERVAL_S)
    assert first.reads
    assert not second.reads
    # when: it is killed, and its lease lapses
    await first.stop()
    bench.redis.delete(bench.partition.reader)
    await until(lambda: second.reads)
    # and: back, it is one of the others
    first.start()
    await until(lambda: not first.reads)
    assert second.reads


async def test_an_idle_worker_is_heard_of_and_takes_nothing(
    watchers: Watchers, bench: Bench
) -> None:
    # given
    worker = watchers("w")
    await worker.broker.start()
    bench.client.submit("x")
    normal = bench.partition.jobs(Priority.NORMAL)

    def heard_ms() -> int:
        """When it was heard of last."""
        with bench.redis.pipeline(transaction=True) as at_once:
            at_once.xinfo_consumers(normal, GROUP)
            at_once.time()
            (info,), (seconds, microseconds) = at_once.execute()
        return int(seconds) * 1000 + int(microseconds) // 1000 - int(info["idle"])

    await worker.broker.announce(bench.partition, MODEL, "keep")
    before_ms = heard_ms()
    await asyncio.sleep(0.3)
    # when
    await worker.broker.announce(bench.partition, MODEL, "keep")
    # then
    assert heard_ms() > before_ms + 200
    status = bench.client.queue_status()
    assert (status.workers, status.waiting["normal"]) == ({"w": 0}, 1)
    # and: no longer than it is there
    await worker.broker.leave(bench.partition)
    assert bench.client.queue_status().workers == {}


async def test_a_worker_that_leaves_makes_room_at_once(watchers: Watchers, bench: Bench) -> None:
    # given
    first, second = watchers("first"), watchers("second")
    await first.broker.start()
    assert await first.broker.queue.elect(bench.partition, 600_000)
    assert not await second.broker.queue.elect(bench.partition, 600_000)
    # when
    await second.broker.leave(bench.partition)
    assert not await second.broker.queue.elect(bench.partition, 600_000)  # it was not its to give
    await first.broker.leave(bench.partition)
    # then
    assert await second.broker.queue.elect(bench.partition, 600_000)


@needs_redis_server  # fakeredis answers differently where a call inside a script fails
async def test_what_somebody_else_has_written_there_keeps_nobody_from_reading(
    broker: EmbeddedBroker, queue: str, raw: redis.Redis, partition: Partition
) -> None:
    reader = Broker(WorkerSettings(redis_url=SecretStr(broker.url), queue=queue), "w")
    await reader.start()
    for spoil in (
        lambda: raw.set(partition.reader, "for ever"),
        lambda: raw.hset(partition.reader, "a", "b"),
    ):
        # given
        raw.delete(partition.reader)
        spoil()
        # then
        assert await reader.queue.elect(partition, 1000)
    await reader.close()


async def test_the_gauges_say_how_the_queue_stands(watchers: Watchers, bench: Bench) -> None:
    # given: one job is held, two wait
    reader = watchers("r")
    await reader.broker.start()
    normal = bench.partition.jobs(Priority.NORMAL)
    bench.client.submit_many(["a", "b"])
    bench.start("w")
    (_, (entry, _)) = bench.redis.xrange(normal)
    await asyncio.sleep(0.002)  # entries are dated in milliseconds
    bench.client.submit("c", priority="high")
    # when
    reader.start()
    # then
    queue = f'{{model="m",queue="{bench.partition.queue}"}}'
    await until(lambda: reader.says(f"queue_lag_jobs{queue} 2.0"))
    assert reader.says(f"queue_pending_jobs{queue} 1.0")
    # the oldest of those that wait is neither the one that is held nor the most urgent one
    assert await reader.broker.queue.oldest_waiting_ms([bench.partition]) == int(
        entry.partition(b"-")[0]
    )
    bench.fetch("w", 2)
    assert await reader.broker.queue.oldest_waiting_ms([bench.partition]) is None


async def test_a_killed_worker_is_lost_and_a_drained_one_is_not(
    watchers: Watchers, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: three that have been heard of
    killed, drained, reader = watchers("killed"), watchers("drained"), watchers("reader")
    for worker in (killed, drained, reader):
        await worker.broker.start()
        await worker.broker.announce(bench.partition, MODEL, "keep")
    bench.fetch(RELEASED, 1)
    assert await reader.broker.queue.lost_workers(bench.partition) == 0
    # when: two fall silent, one of them after a word
    await drained.broker.leave(bench.partition)
    monkeypatch.setattr("rose.protocol.calls.ALIVE_S", 0.5)
    reader.start()
    # then
    queue = f'{{model="m",queue="{bench.partition.queue}"}}'
    await until(lambda: reader.says(f"queue_lost_workers{queue} 1.0"))


@needs_redis_server
async def test_without_redis_nothing_is_said_of_the_queue(
    own_redis: EmbeddedBroker, queue: str
) -> None:
    async with watching(own_redis.url, queue) as watcher:
        # given
        worker = watcher("w")
        await worker.broker.start()
        worker.start()
        await until(lambda: worker.says('ready{model="m"} 1.0') and worker.reads)
        # when
        own_redis.stop()
        # then
        await until(lambda: worker.says('ready{model="m"} 0.0') and not worker.reads)
        assert worker.watch.check() is not None
        # and: well again
        own_redis.start()
        await worker.broker.start()
        await until(lambda: worker.reads and worker.watch.check() is None)
