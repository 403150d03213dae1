"""The measurements, one a module."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

from benchmarks.board import Board
from benchmarks.queue.stage import Worker


class AsyncCase(ABC):
    """A case of `benchmarks.runner` whose rounds are coroutines."""

    def round(self, board: Board, turn: int) -> None:
        asyncio.run(self.measure(board, turn))

    @abstractmethod
    async def measure(self, board: Board, turn: int) -> None: ...


class Submitter(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def max_jobs(self) -> int | None:
        """Where more would take too long."""

    async def submit(self, url: str, jobs: int) -> float:
        """Seconds."""


class Contender(Submitter, Protocol):
    async def enqueue(self, url: str, jobs: int) -> None: ...

    def worker(self, url: str) -> Worker: ...

    async def finish_times(self, url: str, jobs: int) -> list[float]:
        """Waits for all jobs; seconds on any one clock."""

    def serving_worker(self, url: str) -> Worker:
        """One that also says when a job is done."""

    async def latencies(self, url: str, jobs: int) -> list[float]:
        """Seconds of each round trip."""
