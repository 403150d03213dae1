"""Bulk submit: how fast a service gets its jobs into Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.board import Board, at_least
from benchmarks.queue.cases import AsyncCase, Submitter
from benchmarks.queue.ours import Ours, OursSync
from benchmarks.queue.plain import Plain
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import in_turn

METRIC = "bulk submit, jobs/s"


@dataclass(frozen=True, slots=True)
class Submit(AsyncCase):
    jobs: int
    contenders: Sequence[Submitter]
    title: str = "Bulk submit"

    async def measure(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            jobs = min(self.jobs, contender.max_jobs or self.jobs)
            with fresh_redis() as broker:
                seconds = await contender.submit(broker.url, jobs)
            board.add(contender.name, {METRIC: jobs / seconds})

    def judge(self, board: Board) -> None:
        for ours in (Ours.name, OursSync.name):
            rows = (METRIC, ours), (METRIC, Plain.name)
            board.check_ratio(f"{ours} to {Plain.name}", *rows, at_least(0.4))
