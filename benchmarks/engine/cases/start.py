"""Start: from the command to a worker that takes jobs."""

from __future__ import annotations

import time

from benchmarks.board import Board, below
from rose_cli.demo.broker import EmbeddedBroker
from rose_cli.demo.workers import WorkerProcess

METRIC = "from `rose worker` to ready, s"
_MAX_S = 5


class Start:
    title = "Start, built-in model"

    def round(self, board: Board, turn: int) -> None:  # noqa: ARG002 - every round is the same
        with EmbeddedBroker() as broker:
            began = time.perf_counter()
            with WorkerProcess("bench", broker.url) as worker:
                worker.wait_ready()
                seconds = time.perf_counter() - began
        board.add("a worker", {METRIC: seconds})

    def judge(self, board: Board) -> None:
        board.check_figure((METRIC, "a worker"), below(_MAX_S))
