"""A queue, a producer and hand-played workers: every transition of the protocol, one by one."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from rose.protocol import GROUP, EntryKey, JobEntry, Partition, calls, decode_job, encode_event
from rose.protocol.calls import Lease, NotTaken, OfOtherModel, Take, Taken
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, FailedEvent, FinishedEvent, Job, TokenEvent
from tests.support.time_limit import TimeLimit


def wait_until(condition: Callable[[], object], timeout_s: float = 90) -> None:
    limit = TimeLimit(timeout_s)
    while not condition():
        assert not limit.passed, "it never happened"
        time.sleep(0.01)


async def until(condition: Callable[[], object], timeout_s: float = 90) -> None:
    limit = TimeLimit(timeout_s)
    while not condition():
        assert not limit.passed, "it never happened"
        await asyncio.sleep(0.005)


def at_once(server: redis.Redis, keys: Sequence[str]) -> list[Any]:
    """Keys as DUMP gives them, with nothing written in between: as a replica would have them."""
    with server.pipeline(transaction=True) as snapshot:
        for key in keys:
            snapshot.dump(key)
        return snapshot.execute()


def create_groups(client: redis.Redis, partition: Partition) -> None:
    for stream in partition.all_jobs:
        client.xgroup_create(stream, GROUP, "0", mkstream=True)


def log_reads(client: redis.Redis) -> int:
    stats = client.info("commandstats")
    return int(stats.get("cmdstat_xrange", {}).get("calls", 0))


class Bench:
    """A queue, a producer, and workers by name."""

    def __init__(self, broker: EmbeddedBroker, queue: str) -> None:
        self.redis = redis.Redis(port=broker.port, protocol=2)
        self.partition = Partition(queue)
        self.client = Client(redis_url=broker.url, queue=queue)
        create_groups(self.redis, self.partition)

    def close(self) -> None:
        self.client.close()
        self.redis.close()

    def call(self, call: calls.Call) -> Any:
        return self.client._thread.call(lambda client: client._redis.run(call))

    def fetch(self, worker: str, count: int = 1, *, ageing_s: float = 60) -> list[JobEntry]:
        call = calls.fetch(self.partition, worker, count, ageing_ms=int(ageing_s * 1000))
        return [
            JobEntry(EntryKey(stream.decode(), entry.decode()), decode_job(raw).id)
            for stream, flat in self.call(call)[0]
            for entry, raw in zip(flat[::2], flat[1::2], strict=True)
        ]

    def take(
        self, worker: str, job: JobEntry, *, alone: bool = True, take_id: str | None = None
    ) -> Taken | NotTaken | OfOtherModel:
        """`take_id`: that of an earlier call, to repeat it."""
        take = Take(*job, take_id) if take_id else Take(*job)
        call = calls.take(self.partition, [take], worker, ttl_s=60, mode="alone" if alone else "")
        (reply,) = self.call(call)
        return calls.taken(reply, take.take_id)

    def start(self, worker: str) -> Lease:
        """Fetch one job and take it."""
        (job,) = self.fetch(worker)
        taken = self.take(worker, job)
        assert isinstance(taken, Taken)
        return Lease(self.partition, *job, taken.take_id)

    def begin(self, worker: str = "w") -> tuple[Job, Lease]:
        """A job that this worker has taken."""
        return self.client.submit("x"), self.start(worker)

    def append(self, lease: Lease, *events: TokenEvent) -> list[str]:
        return self.publish([to_append(lease, event) for event in events])

    def finish(self, lease: Lease, index: int) -> str:
        event = FinishedEvent(index=index, reason="eos", prompt_tokens=1)
        (outcome,) = self.publish([calls.Append(lease, index, end=event)])
        return outcome

    def publish(self, items: list[calls.Append]) -> list[str]:
        reply = self.call(calls.append(self.partition, items, ttl_s=60))
        return calls.outcomes(reply, len(items))

    def steal(self, lease: Lease, thief: str) -> Taken:
        """What another worker does once the lease has lapsed."""
        self.redis.xclaim(lease.entry.stream, GROUP, thief, 0, [lease.entry.id])
        taken = self.take(thief, JobEntry(lease.entry, lease.job_id))
        assert isinstance(taken, Taken)
        return taken

    @contextmanager
    def listening(self, channel: str = "") -> Iterator[redis.client.PubSub]:
        """What is published from now on: to all channels of the queue, or to one."""
        with self.redis.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.psubscribe(channel or f"rose:{{{self.partition.queue}:0}}:*")
            pubsub.get_message(timeout=90)
            yield pubsub

    def lengths(self) -> list[int]:
        return [self.redis.xlen(stream) for stream in self.partition.all_jobs]


def token(index: int) -> TokenEvent:
    return TokenEvent(index=index, token_ids=(100 + index,), text=f"t{index} ")


def to_append(lease: Lease, *events: TokenEvent) -> calls.Append:
    """Events of one job, in one item."""
    counts = [len(event.token_ids) for event in events]
    return calls.Append(lease, events[0].index, counts, [encode_event(event) for event in events])


def dead_letter(
    bench: Bench,
    entry: EntryKey,
    job_id: str,
    event: FailedEvent,
    raw: bytes = b"garbage",
    keep_bytes: int = 2**20,
) -> calls.Call:
    """Worker `w` gives up on an entry that held the bytes `raw`."""
    return calls.dead_letter(
        bench.partition,
        entry,
        "w",
        raw=raw,
        job_id=job_id,
        event=event,
        keep=10,
        keep_bytes=keep_bytes,
        keep_s=60,
        ttl_s=60,
    )


def end_failed(bench: Bench, job: Job, code: str) -> None:
    """Worker `w` reads the next job, which is `job`, and ends it with an error."""
    lease = bench.start("w")
    assert lease.job_id == job.id
    event = FailedEvent(index=0, code=code, message="as the test wishes")
    bench.publish([calls.Append(lease, 0, end=event)])
