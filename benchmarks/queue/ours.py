"""The queue itself: clients as a service would use them, `rose worker` with the null engine."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio

from benchmarks.queue.plain import chunks, connect, wait_results
from benchmarks.queue.stage import Contender
from rose.protocol import Event, JobSpec, Partition, Priority, encode_job, new_job_id
from rose.sampling import SamplingParams
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, AsyncJob, Client, Request

_TIMEOUT_S = 300.0
_WARM_UP = 500
PARTITION = Partition("default")
_STATE = ("status", "tokens", "epoch", "started_ms", "ended_ms")

#: A job of about 100 bytes on the wire.
PROMPT = "Once upon a time, "


def payload() -> bytes:
    """The bytes of one of our jobs."""
    sampling = SamplingParams(max_new_tokens=1)
    return encode_job(JobSpec(id=new_job_id(0), prompt=PROMPT, sampling=sampling))


@dataclass(frozen=True, slots=True)
class Ended:
    """What Redis holds of a finished job. Times in Unix seconds."""

    tokens: int
    epoch: int
    started: float
    ended: float
    log_entries: int
    """with the terminal event"""


class Ours(Contender):
    name = "roseinfer"
    max_jobs = None

    def __init__(self, max_batch_size: int) -> None:
        """`max_batch_size`: of the worker that drains."""
        self._max_batch_size = max_batch_size

    async def submit(self, url: str, jobs: int) -> float:
        async with open_client(url) as client:
            await client.submit_many(requests(_WARM_UP))
            batch = requests(jobs)
            began = time.perf_counter()
            await client.submit_many(batch)
            return time.perf_counter() - began

    async def enqueue(self, url: str, jobs: int) -> None:
        async with open_client(url) as client:
            await client.submit_many(requests(jobs))

    def worker(self, url: str) -> WorkerProcess:
        return start_worker(url, max_batch_size=self._max_batch_size)

    def serving_worker(self, url: str) -> WorkerProcess:
        return start_worker(url)

    async def finish_times(self, url: str, jobs: int) -> list[float]:
        """Raises: RuntimeError: a job lacks its log, its epoch or its end."""
        ended = await wait_ended(url, jobs)
        for job in ended:
            if (job.tokens, job.epoch, job.log_entries) != (1, 1, 2):
                raise RuntimeError(f"a job of one token ended as {job}")
        return [job.ended for job in ended]

    async def latencies(self, url: str, jobs: int) -> list[float]:
        async with open_client(url) as client:
            return [await _round_trip(client) for _ in range(jobs)]


class OursSync(Ours):
    """The synchronous client, which differs in submitting only."""

    name = "roseinfer (sync client)"

    async def submit(self, url: str, jobs: int) -> float:
        return await asyncio.to_thread(_submit_sync, url, jobs)


@dataclass(slots=True)
class Listener:
    """A subscriber, and when it got which events."""

    job: AsyncJob
    events: list[tuple[Event, float]] = field(default_factory=list)

    async def run(self) -> None:
        async with aclosing(self.job.stream(timeout_s=_TIMEOUT_S)) as events:
            async for event in events:
                self.events.append((event, time.perf_counter()))


def contiguous(events: Iterable[Event]) -> int | None:
    """How many tokens a finished log holds; None where it has a hole or a repeat."""
    cursor = 0
    for event in events:
        if event.index != cursor:
            return None
        cursor = event.cursor
    return cursor


def requests(jobs: int, new_tokens: int = 1) -> list[Request]:
    return [Request(PROMPT, sampling={"max_new_tokens": new_tokens}) for _ in range(jobs)]


#: More than any case enqueues.
_NO_LIMIT: dict[str, Any] = {"max_queued_jobs": 10**8, "max_queued_bytes": 10**12}


def open_client(url: str) -> AsyncClient:
    return AsyncClient(redis_url=url, **_NO_LIMIT)


def start_worker(url: str, **settings: Any) -> WorkerProcess:
    """A worker that writes no line for each job, as one under such a load would be run."""
    given = {"engine": "null", "log_level": "warning", **_NO_LIMIT, **settings}
    return WorkerProcess("bench", url, **given)


async def wait_ended(url: str, jobs: int) -> list[Ended]:
    """What all jobs of the queue have become, once none waits or runs."""
    prefix = PARTITION.state("")
    async with connect(url) as client:
        keys = await wait_results(client, PARTITION.jobs(Priority.NORMAL), prefix, jobs)
        ids = [key.decode().removeprefix(prefix) for key in keys]
        return [job for chunk in chunks(ids, _WARM_UP) for job in await read_ended(client, chunk)]


async def read_ended(client: redis.asyncio.Redis, ids: Sequence[str]) -> list[Ended]:
    """Raises: RuntimeError: one has not finished."""
    pipeline = client.pipeline(transaction=False)
    for job_id in ids:
        pipeline.hmget(PARTITION.state(job_id), _STATE)
        pipeline.xlen(PARTITION.tokens(job_id))
    replies = await pipeline.execute()
    ended = []
    for (status, tokens, epoch, *times), entries in zip(replies[::2], replies[1::2], strict=True):
        if status != b"finished":
            raise RuntimeError(f"a job is {status}, not finished")
        started, end = (int(ms) / 1000 for ms in times)
        ended.append(Ended(int(tokens), int(epoch), started, end, entries))
    return ended


async def _round_trip(client: AsyncClient) -> float:
    began = time.perf_counter()
    job = await client.submit(PROMPT, max_new_tokens=1)
    await job.result(timeout_s=30)
    return time.perf_counter() - began


def _submit_sync(url: str, jobs: int) -> float:
    with Client(redis_url=url, **_NO_LIMIT) as client:
        client.submit_many(requests(_WARM_UP))
        batch = requests(jobs)
        began = time.perf_counter()
        client.submit_many(batch)
        return time.perf_counter() - began
