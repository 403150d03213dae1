"""Streams through the gateway and through the Python client, in turn, in one run."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.board import Board, Target
from benchmarks.gateway.stage import Stage, stage
from benchmarks.runner import AsyncCase, in_turn
from benchmarks.usage import cpu_s

TOKENS = "tokens/s"
EVENTS = "events/s"
GATEWAY_CPU = "the gateway's CPU, us an event"
GATEWAY, CLIENT = "through the gateway", "Python client"


@dataclass(frozen=True, slots=True)
class Streams(AsyncCase):
    """`count` at once, of `tokens` each."""

    title: str
    count: int
    tokens: int
    target: Target | None = None
    """of the gateway's tokens/s to the client's"""
    worker: dict[str, Any] = field(default_factory=dict)

    async def measure(self, board: Board, turn: int) -> None:
        with stage(max_batch_size=self.count, **self.worker) as everything:
            await everything.through_client(self.count, min(20, self.tokens))
            await everything.through_gateway(self.count, min(20, self.tokens))
            for name in in_turn((CLIENT, GATEWAY), turn):
                measured = self._through_gateway if name == GATEWAY else self._through_client
                board.add(name, await measured(everything))

    def judge(self, board: Board) -> None:
        if self.target is not None:
            rows = (TOKENS, GATEWAY), (TOKENS, CLIENT)
            board.check_ratio("tokens/s: gateway to Python client", *rows, self.target)

    async def _through_gateway(self, everything: Stage) -> dict[str, float]:
        pid = everything.gateway.pid or 0
        before_s = cpu_s(pid)
        result = await everything.through_gateway(self.count, self.tokens)
        spent_s = cpu_s(pid) - before_s
        return {**self._rates(result), GATEWAY_CPU: spent_s / result["events"] * 1e6}

    async def _through_client(self, everything: Stage) -> dict[str, float]:
        return self._rates(await everything.through_client(self.count, self.tokens))

    def _rates(self, result: dict[str, Any]) -> dict[str, float]:
        """Raises: RuntimeError: tokens are missing."""
        if result["tokens"] != self.count * self.tokens:
            raise RuntimeError(f"{result['tokens']} tokens of {self.count * self.tokens} came")
        seconds = result["seconds"]
        return {TOKENS: result["tokens"] / seconds, EVENTS: result["events"] / seconds}
