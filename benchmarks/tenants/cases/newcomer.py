"""One tenant has a hundred thousand jobs waiting, another submits one: who begins before it?"""

import asyncio
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import redis.asyncio

from benchmarks.board import Board, at_most
from benchmarks.queue.plain import chunks, connect
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import AsyncCase
from benchmarks.tenants.stage import NO_LIMIT, request, worker
from rose.protocol import Partition, partition_of
from rose_producer import AsyncClient

BEFORE = "jobs of the other tenant before it, most of all arrivals"
BEFORE_MEDIAN = "jobs of the other tenant before it, median"
WAIT = "ms until a worker had it, median"
LEFT = "jobs of the other tenant that still waited at the end"
_TOKENS = 8
_STEP_S = 0.002
_CHUNK = 20_000
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Setting:
    workers: int
    slots: int
    """of each worker"""
    partitions: int

    @property
    def name(self) -> str:
        parts = (self.workers, "worker"), (self.slots, "slot"), (self.partitions, "partition")
        return ", ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in parts)

    @property
    def bound(self) -> int:
        return self.workers * self.slots + self.partitions


@dataclass(frozen=True, slots=True)
class Newcomer(AsyncCase):
    setting: Setting
    waiting: int
    """at the end at least"""
    reserve: int
    """jobs more, which are worked on meanwhile"""
    arrivals: int
    title: str = "One tenant has many jobs waiting, another submits one after another"

    async def measure(self, board: Board, _turn: int) -> None:
        board.add(self.setting.name, await self._arrive(self.setting))

    def judge(self, board: Board) -> None:
        row = BEFORE, self.setting.name
        board.check_every(row, at_most(self.setting.bound))

    async def _arrive(self, setting: Setting) -> dict[str, float]:
        with fresh_redis() as broker, ExitStack() as stack:
            url, partitions = broker.url, setting.partitions
            async with AsyncClient(redis_url=url, partitions=partitions, **NO_LIMIT) as client:
                many = await _fill(client, self.waiting + self.reserve)
                workers = [
                    worker(
                        f"worker-{n}",
                        url,
                        partitions=partitions,
                        max_batch_size=setting.slots,
                        min_step_s=_STEP_S,
                    )
                    for n in range(setting.workers)
                ]
                for each in workers:
                    stack.enter_context(each)
                for each in workers:
                    await asyncio.to_thread(each.wait_ready)
                async with asyncio.timeout(_TIMEOUT_S):
                    ones = [await _round_trip(client) for _ in range(self.arrivals)]
                for each in workers:
                    each.kill()
            async with connect(url) as direct:
                queue = client.settings.queue
                given = sorted(
                    job.given for job in await _read(direct, queue, many) if job.given is not None
                )
                arrivals = await _read(direct, queue, ones)
        before = [_given_before(arrival, given) for arrival in arrivals]
        return {
            BEFORE: max(before),
            BEFORE_MEDIAN: statistics.median(before),
            WAIT: statistics.median(
                job.given - job.came for job in arrivals if job.given is not None
            ),
            LEFT: len(many) - len(given),
        }


async def _fill(client: AsyncClient, jobs: int) -> list[str]:
    ids: list[str] = []
    for start in range(0, jobs, _CHUNK):
        numbers = range(start, min(start + _CHUNK, jobs))
        some = [request("many", 1 + n % (2 * _TOKENS)) for n in numbers]
        ids += [job.id for job in await client.submit_many(some)]
    return ids


async def _round_trip(client: AsyncClient) -> str:
    (job,) = await client.submit_many([request("one")])
    await job.result(timeout_s=_TIMEOUT_S)
    return job.id


@dataclass(frozen=True, slots=True)
class _Job:
    came: int
    """ms by Redis' clock"""
    given: int | None
    """when it was given to a worker, ms; None: it waits"""


async def _read(client: redis.asyncio.Redis, queue: str, ids: Sequence[str]) -> list[_Job]:
    jobs: list[_Job] = []
    for chunk in chunks(ids, 1000):
        pipeline = client.pipeline(transaction=False)
        for job_id in chunk:
            state = Partition(queue, partition_of(job_id)).state(job_id)
            pipeline.hmget(state, "enqueued_ms", "started_ms")
        for came, given in await pipeline.execute():
            jobs.append(_Job(int(came), None if given is None else int(given)))
    return jobs


def _given_before(arrival: _Job, given: Sequence[int]) -> int:
    """How many of the other tenant's jobs were given out from its submit on until it was its turn.
    Those of the milliseconds in which it came and was given to a worker count."""
    if arrival.given is None:
        raise RuntimeError("a job has ended that no worker was given")
    return bisect_right(given, arrival.given) - bisect_left(given, arrival.came)
