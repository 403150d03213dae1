"""A thousand streams that are open at once, and the memory that one takes."""

import signal
from dataclasses import dataclass

from benchmarks.board import Board, at_least
from benchmarks.gateway.cases.streams import GATEWAY
from benchmarks.gateway.stage import stage
from benchmarks.runner import AsyncCase
from benchmarks.usage import resident_bytes

SERVED = "open streams, each served to its end"
MEMORY = "the gateway's memory, KiB a stream"
SECONDS = "s, first to last event"
EVENTS = "events/s"


@dataclass(frozen=True, slots=True)
class OpenStreams(AsyncCase):
    count: int
    tokens: int
    title: str = "Many open streams, null engine"

    async def measure(self, board: Board, turn: int) -> None:  # noqa: ARG002 - one contender
        with stage(engine="null", max_batch_size=self.count) as everything:
            pid = everything.gateway.pid or 0
            await everything.through_gateway(8, 20)
            before = resident_bytes(pid)
            everything.worker.signal(signal.SIGSTOP)  # all are open before one of them ends
            load = await everything.held_open(self.count, self.tokens)
            held = resident_bytes(pid) - before
            everything.worker.signal(signal.SIGCONT)
            result = await load.result()
        board.add(
            GATEWAY,
            {
                SERVED: result["served"],
                MEMORY: held / self.count / 1024,
                SECONDS: result["streaming_s"],
                EVENTS: result["events"] / result["streaming_s"],
            },
        )

    def judge(self, board: Board) -> None:
        board.check_every((SERVED, GATEWAY), at_least(self.count))
