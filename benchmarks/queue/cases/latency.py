"""Submit to result, one job after another: what a caller waits when nobody else is there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.board import Board, at_most
from benchmarks.queue.cases import AsyncCase, Contender
from benchmarks.queue.ours import Ours
from benchmarks.queue.plain import Plain
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import in_turn

P50 = "submit to result, p50 ms"
P99 = "submit to result, p99 ms"
_WARM_UP = 50


@dataclass(frozen=True, slots=True)
class Latency(AsyncCase):
    jobs: int
    contenders: Sequence[Contender]
    title: str = "Submit to result, one at a time"

    async def measure(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            with fresh_redis() as broker, contender.serving_worker(broker.url) as worker:
                worker.wait_ready()
                taken = await contender.latencies(broker.url, _WARM_UP + self.jobs)
            cuts = statistics.quantiles(taken[_WARM_UP:], n=100)
            board.add(contender.name, {P50: cuts[49] * 1000, P99: cuts[98] * 1000})

    def judge(self, board: Board) -> None:
        rows = (P50, Ours.name), (P50, Plain.name)
        board.check_ratio(f"p50: {Ours.name} to {Plain.name}", *rows, at_most(3))
