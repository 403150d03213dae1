"""Submit to result, one job after another: what a caller waits when nobody else is there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.board import Board, Figure
from benchmarks.queue.ours import Ours
from benchmarks.queue.plain import Plain
from benchmarks.queue.stage import Worker, fresh_redis
from benchmarks.turns import in_turn

P50 = "submit to result, p50 ms"
P99 = "submit to result, p99 ms"
_WARM_UP = 50


class Answerer(Protocol):
    @property
    def name(self) -> str: ...

    def serving_worker(self, url: str) -> Worker: ...

    async def latencies(self, url: str, jobs: int) -> list[float]:
        """Seconds of each round trip."""


@dataclass(frozen=True, slots=True)
class Latency:
    jobs: int
    contenders: Sequence[Answerer]
    title: str = "Submit to result, one at a time"
    rounds: None = None

    async def round(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            with fresh_redis() as broker, contender.serving_worker(broker.url) as worker:
                worker.wait_ready()
                taken = await contender.latencies(broker.url, _WARM_UP + self.jobs)
            cuts = statistics.quantiles(taken[_WARM_UP:], n=100)
            board.add(
                [
                    Figure(P50, contender.name, cuts[49] * 1000),
                    Figure(P99, contender.name, cuts[98] * 1000),
                ]
            )

    def judge(self, board: Board) -> None:
        board.check_ratio(
            f"p50: {Ours.name} to {Plain.name}",
            (P50, Ours.name),
            (P50, Plain.name),
            "at most 3",
            lambda ratio: ratio <= 3,
        )
