"""Drain: how fast one worker process gets through jobs that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.board import Board, Figure
from benchmarks.queue.ours import Ours
from benchmarks.queue.plain import Plain
from benchmarks.queue.stage import Worker, fresh_redis
from benchmarks.turns import in_turn

METRIC = "drain, jobs/s"
_LONGEST_S = 300.0


class Drainer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def most_jobs(self) -> int | None:
        """Where more would take too long."""

    async def enqueue(self, url: str, jobs: int) -> None: ...

    def worker(self, url: str) -> Worker: ...

    async def finish_times(self, url: str, jobs: int) -> list[float]:
        """Waits for all jobs; seconds on any one clock."""


@dataclass(frozen=True, slots=True)
class Drain:
    jobs: int
    contenders: Sequence[Drainer]
    title: str = "Drain of one-token jobs, one worker process"
    rounds: None = None

    async def round(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            jobs = min(self.jobs, contender.most_jobs or self.jobs)
            board.add([Figure(METRIC, contender.name, await drain_rate(contender, jobs))])

    def judge(self, board: Board) -> None:
        ours, plain = (METRIC, Ours.name), (METRIC, Plain.name)
        board.check_ratio(
            f"{Ours.name} to {Plain.name}", ours, plain, "at least 0.4", lambda r: r >= 0.4
        )
        for name in board.contenders(METRIC):
            if name not in (Ours.name, Plain.name):
                board.check_ratio(
                    f"{Ours.name} to {name}", ours, (METRIC, name), "above 1", lambda r: r > 1
                )


async def drain_rate(contender: Drainer, jobs: int) -> float:
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
