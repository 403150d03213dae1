"""Bulk submit: how fast a service gets its jobs into Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.board import Board, Figure
from benchmarks.queue.ours import Ours, OursSync
from benchmarks.queue.plain import Plain
from benchmarks.queue.stage import fresh_redis
from benchmarks.turns import in_turn

METRIC = "bulk submit, jobs/s"


class Submitter(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def most_jobs(self) -> int | None:
        """Where more would take too long."""

    async def submit(self, url: str, jobs: int) -> float:
        """Seconds."""


@dataclass(frozen=True, slots=True)
class Submit:
    jobs: int
    contenders: Sequence[Submitter]
    title: str = "Bulk submit"
    rounds: None = None

    async def round(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            jobs = min(self.jobs, contender.most_jobs or self.jobs)
            with fresh_redis() as broker:
                seconds = await contender.submit(broker.url, jobs)
            board.add([Figure(METRIC, contender.name, jobs / seconds)])

    def judge(self, board: Board) -> None:
        for ours in (Ours.name, OursSync.name):
            board.check_ratio(
                f"{ours} to {Plain.name}",
                (METRIC, ours),
                (METRIC, Plain.name),
                "at least 0.4",
                lambda ratio: ratio >= 0.4,
            )
