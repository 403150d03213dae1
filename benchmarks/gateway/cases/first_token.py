"""What the gateway adds to the time to the first token."""

from dataclasses import dataclass

from benchmarks.board import Board, at_most, percentile
from benchmarks.gateway.cases.streams import CLIENT, GATEWAY
from benchmarks.gateway.stage import stage
from benchmarks.runner import AsyncCase

FIRST_P50 = "time to first token, p50 ms"
FIRST_P99 = "time to first token, p99 ms"
ADDED = "added time to first token, p50 ms"


@dataclass(frozen=True, slots=True)
class FirstToken(AsyncCase):
    """Null engine, one stream at a time: nothing else is waited for."""

    streams: int
    title: str = "Time to the first token, one stream at a time, null engine"

    async def measure(self, board: Board, turn: int) -> None:  # noqa: ARG002 - they take turns within
        with stage(engine="null") as everything:
            waits = await everything.first_tokens(self.streams)
        medians = {}
        for name, side in ((CLIENT, "client"), (GATEWAY, "gateway")):
            medians[side] = percentile(waits[side], 50) * 1000
            p99 = percentile(waits[side], 99) * 1000
            board.add(name, {FIRST_P50: medians[side], FIRST_P99: p99})
        board.add(GATEWAY, {ADDED: medians["gateway"] - medians["client"]})

    def judge(self, board: Board) -> None:
        board.check_figure((ADDED, GATEWAY), at_most(4))
