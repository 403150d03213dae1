"""Drain: how fast one worker process gets through jobs that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.board import Board, above, at_least
from benchmarks.queue.cases import AsyncCase, Contender
from benchmarks.queue.ours import Ours
from benchmarks.queue.plain import Plain
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import in_turn

METRIC = "drain, jobs/s"
_LONGEST_S = 300.0


@dataclass(frozen=True, slots=True)
class Drain(AsyncCase):
    jobs: int
    contenders: Sequence[Contender]
    title: str = "Drain of one-token jobs, one worker process"

    async def measure(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            jobs = min(self.jobs, contender.max_jobs or self.jobs)
            board.add(contender.name, {METRIC: await drain_rate(contender, jobs)})

    def judge(self, board: Board) -> None:
        for name in board.contenders(METRIC):
            if name != Ours.name:
                target = at_least(0.4) if name == Plain.name else above(1)
                rows = (METRIC, Ours.name), (METRIC, name)
                board.check_ratio(f"{Ours.name} to {name}", *rows, target)


async def drain_rate(contender: Contender, jobs: int) -> float:
    """Jobs per second from the first finish to the last: the worker's start does not count."""
    with fresh_redis() as broker:
        await contender.enqueue(broker.url, jobs)
        with contender.worker(broker.url):
            async with asyncio.timeout(_LONGEST_S):
                times = await contender.finish_times(broker.url, jobs)
    return rate(times)


def rate(times: Sequence[float]) -> float:
    """The first ones ended together, after work that the clock has not seen: they do not count."""
    first, last = min(times), max(times)
    return sum(time > first for time in times) / (last - first)
