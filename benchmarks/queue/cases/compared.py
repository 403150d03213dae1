"""The queue beside the plain loop and other queues: bulk submit, drain, latency."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.board import Board, above, at_least, at_most
from benchmarks.queue.cases import AsyncCase, Contender, Submitter
from benchmarks.queue.ours import Ours, OursSync
from benchmarks.queue.plain import Plain
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import in_turn

SUBMIT = "bulk submit, jobs/s"
DRAIN = "drain, jobs/s"
P50 = "submit to result, p50 ms"
P99 = "submit to result, p99 ms"
_DRAIN_LIMIT_S = 300.0
_WARM_UP = 50


@dataclass(frozen=True, slots=True)
class Submit(AsyncCase):
    """Bulk submit: how fast a service gets its jobs into Redis."""

    jobs: int
    contenders: Sequence[Submitter]
    title: str = "Bulk submit"

    async def measure(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            jobs = min(self.jobs, contender.max_jobs or self.jobs)
            with fresh_redis() as broker:
                seconds = await contender.submit(broker.url, jobs)
            board.add(contender.name, {SUBMIT: jobs / seconds})

    def judge(self, board: Board) -> None:
        for ours in (Ours.name, OursSync.name):
            rows = (SUBMIT, ours), (SUBMIT, Plain.name)
            board.check_ratio(f"{ours} to {Plain.name}", *rows, at_least(0.4))


@dataclass(frozen=True, slots=True)
class Drain(AsyncCase):
    """How fast one worker process gets through jobs that wait for it."""

    jobs: int
    contenders: Sequence[Contender]
    title: str = "Drain of one-token jobs, one worker process"

    async def measure(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            jobs = min(self.jobs, contender.max_jobs or self.jobs)
            board.add(contender.name, {DRAIN: await drain_rate(contender, jobs)})

    def judge(self, board: Board) -> None:
        for name in board.contenders(DRAIN):
            if name != Ours.name:
                target = at_least(0.4) if name == Plain.name else above(1)
                rows = (DRAIN, Ours.name), (DRAIN, name)
                board.check_ratio(f"{Ours.name} to {name}", *rows, target)


async def drain_rate(contender: Contender, jobs: int) -> float:
    """Jobs per second from the first finish to the last: the worker's start does not count."""
    with fresh_redis() as broker:
        await contender.enqueue(broker.url, jobs)
        with contender.worker(broker.url):
            async with asyncio.timeout(_DRAIN_LIMIT_S):
                times = await contender.finish_times(broker.url, jobs)
    return rate(times)


def rate(times: Sequence[float]) -> float:
    """The first ones ended together, after work that the clock has not seen: they do not count."""
    first, last = min(times), max(times)
    return sum(time > first for time in times) / (last - first)


@dataclass(frozen=True, slots=True)
class Latency(AsyncCase):
    """Submit to result, one job after another: what a caller waits when nobody else is there."""

    jobs: int
    contenders: Sequence[Contender]
    title: str = "Submit to result, one at a time"

    async def measure(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            with fresh_redis() as broker, contender.serving_worker(broker.url) as worker:
                worker.wait_ready()
                seconds = await contender.latencies(broker.url, _WARM_UP + self.jobs)
            cuts = statistics.quantiles(seconds[_WARM_UP:], n=100)
            board.add(contender.name, {P50: cuts[49] * 1000, P99: cuts[98] * 1000})

    def judge(self, board: Board) -> None:
        rows = (P50, Ours.name), (P50, Plain.name)
        board.check_ratio(f"p50: {Ours.name} to {Plain.name}", *rows, at_most(3))
