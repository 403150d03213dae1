"""What a job costs Redis, and how long it takes, beside one idle worker and beside many."""

import asyncio
import statistics
import sys
from dataclasses import dataclass

import redis.asyncio

from benchmarks.board import Board, at_most
from benchmarks.queue.crowd import READY
from benchmarks.queue.ours import Ours
from benchmarks.queue.plain import connect
from benchmarks.queue.stage import ForeignWorker, fresh_redis
from benchmarks.runner import AsyncCase, in_turn

CPU = "Redis' CPU, us a job"
P50 = "submit to result, p50 ms"
BYTES = "bytes from Redis, a job"
_WARM_UP = 50


@dataclass(frozen=True, slots=True)
class Idle(AsyncCase):
    workers: tuple[int, int]
    jobs: int
    ours: Ours
    title: str = "One job after another, beside idle workers"

    async def measure(self, board: Board, turn: int) -> None:
        for count in in_turn(self.workers, turn):
            board.add(_name(count), await self._beside(count))

    def judge(self, board: Board) -> None:
        few, many = map(_name, self.workers)
        for metric in (CPU, P50):
            board.check_ratio(
                f"{metric}: {many} to {few}", (metric, many), (metric, few), at_most(1.3)
            )

    async def _beside(self, count: int) -> dict[str, float]:
        with fresh_redis() as broker, _crowd(broker.url, count) as crowd:
            await asyncio.to_thread(crowd.wait_ready)
            await self.ours.latencies(broker.url, _WARM_UP)
            async with connect(broker.url) as observer:
                cpu_s, sent = await _used(observer)
                seconds = await self.ours.latencies(broker.url, self.jobs)
                cpu_after_s, sent_after = await _used(observer)
        return {
            CPU: (cpu_after_s - cpu_s) / self.jobs * 1e6,
            P50: statistics.median(seconds) * 1000,
            BYTES: (sent_after - sent) / self.jobs,
        }


def _name(count: int) -> str:
    return f"{count} idle worker{'s' if count > 1 else ''}"


def _crowd(url: str, count: int) -> ForeignWorker:
    command = [sys.executable, "-m", "benchmarks.queue.crowd", url, str(count)]
    return ForeignWorker(command, lambda log: log.count(READY) == count)


async def _used(observer: redis.asyncio.Redis) -> tuple[float, int]:
    """Redis' CPU seconds so far, and what it has sent."""
    cpu, stats = await observer.info("cpu"), await observer.info("stats")
    return cpu["used_cpu_user"] + cpu["used_cpu_sys"], stats["total_net_output_bytes"]
