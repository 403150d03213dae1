"""Intake with a million jobs waiting: the depth of the queue must not matter."""

import asyncio
import time
from dataclasses import dataclass

import redis.asyncio

from benchmarks.board import Board, at_least, at_most
from benchmarks.queue.ours import PARTITION, Ours, open_client, requests
from benchmarks.queue.plain import connect
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import AsyncCase, in_turn
from rose.protocol import Priority

RATE = "drain, jobs/s"
CPU = "redis-server CPU, us a job"
READ = "XREADGROUP, us a job"
_WARM_UP = 2_000
_CHUNK = 20_000
_POLL_S = 0.005
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class _Sample:
    time_s: float
    waiting: int
    redis_cpu_s: float
    read_us: float


@dataclass(frozen=True, slots=True)
class Waiting(AsyncCase):
    depths: tuple[int, int]
    """how many jobs wait at least, while `drained` of those above are drained"""
    drained: int
    ours: Ours
    title: str = "Intake with few and with many jobs waiting"

    async def measure(self, board: Board, turn: int) -> None:
        for depth in in_turn(self.depths, turn):
            board.add(_name(depth), await self._drain_down_to(depth))

    def judge(self, board: Board) -> None:
        few, many = (_name(depth) for depth in self.depths)
        for metric, target in ((RATE, at_least(0.9)), (CPU, at_most(1.1)), (READ, at_most(1.1))):
            rows = (metric, many), (metric, few)
            board.check_ratio(f"{metric}: {many} to {few}", *rows, target)

    async def _drain_down_to(self, depth: int) -> dict[str, float]:
        with fresh_redis() as broker:
            await _fill(broker.url, depth + self.drained + _WARM_UP)
            async with connect(broker.url) as client:
                with self.ours.worker(broker.url):
                    async with asyncio.timeout(_TIMEOUT_S):
                        first = await _sample_below(client, depth + self.drained)
                        last = await _sample_below(client, depth)
        jobs = first.waiting - last.waiting
        return {
            RATE: jobs / (last.time_s - first.time_s),
            CPU: (last.redis_cpu_s - first.redis_cpu_s) / jobs * 1e6,
            READ: (last.read_us - first.read_us) / jobs,
        }


async def _fill(url: str, jobs: int) -> None:
    async with open_client(url) as client:
        for start in range(0, jobs, _CHUNK):
            await client.submit_many(requests(min(_CHUNK, jobs - start)))


async def _sample_below(client: redis.asyncio.Redis, waiting: int) -> _Sample:
    """As soon as no more than `waiting` jobs wait or run."""
    stream = PARTITION.jobs(Priority.NORMAL)
    while await client.xlen(stream) > waiting:
        await asyncio.sleep(_POLL_S)
    pipeline = client.pipeline(transaction=True)
    pipeline.xlen(stream)
    pipeline.info("cpu")
    pipeline.info("commandstats")
    left, cpu, stats = await pipeline.execute()
    return _Sample(
        time.perf_counter(),
        left,
        cpu["used_cpu_user"] + cpu["used_cpu_sys"],
        stats.get("cmdstat_xreadgroup", {"usec": 0})["usec"],
    )


def _name(depth: int) -> str:
    return f"{depth:,} waiting"
