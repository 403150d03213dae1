"""Long jobs: how many token events a second get into the log."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.board import Board, at_least
from benchmarks.queue.cases import AsyncCase
from benchmarks.queue.ours import Ours, open_client, requests, start_worker, wait_ended
from benchmarks.queue.plain import Plain, add_events
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import in_turn
from rose.protocol import encode_tokens

EVENTS = "log entries/s"
TOKENS = "tokens/s"
_SAME_EVENTS = "plain loop, our events"


@dataclass(frozen=True, slots=True)
class Tokens(AsyncCase):
    jobs: int
    new_tokens: int
    plain: Plain
    plain_entries: int
    title: str = "Token events of long jobs"

    async def measure(self, board: Board, turn: int) -> None:
        contenders = {
            Plain.name: self._plain_jobs,
            Ours.name: self._ours,
            _SAME_EVENTS: self._plain_events,
        }
        for name in in_turn(list(contenders), turn):
            board.add(name, await contenders[name]())

    def judge(self, board: Board) -> None:
        for plain in (Plain.name, _SAME_EVENTS):
            for metric in (EVENTS, TOKENS):
                rows = (metric, Ours.name), (EVENTS, plain)
                board.check_ratio(f"{metric}: {Ours.name} to {plain}", *rows, at_least(1))

    async def _ours(self) -> dict[str, float]:
        """From the first take to the last end."""
        with (
            fresh_redis() as broker,
            start_worker(broker.url, max_batch_size=self.jobs) as worker,
        ):
            worker.wait_ready()
            async with open_client(broker.url) as client:
                await client.submit_many(requests(self.jobs, self.new_tokens))
            ended = await wait_ended(broker.url, self.jobs)
        tokens = sum(job.tokens for job in ended)
        if tokens != self.jobs * self.new_tokens:
            raise RuntimeError(f"{tokens} tokens of {self.jobs * self.new_tokens} are logged")
        seconds = max(job.ended for job in ended) - min(job.started for job in ended)
        events = sum(job.log_entries - 1 for job in ended)
        return {EVENTS: events / seconds, TOKENS: tokens / seconds}

    async def _plain_jobs(self) -> dict[str, float]:
        with fresh_redis() as broker:
            seconds = await self.plain.submit(broker.url, self.plain_entries)
        return {EVENTS: self.plain_entries / seconds}

    async def _plain_events(self) -> dict[str, float]:
        """The same XADDs that our log consists of, one event a token."""
        events = [
            (f"plain:log:{n % self.jobs}", f"{n // self.jobs + 1}-0", _event(n // self.jobs))
            for n in range(self.plain_entries)
        ]
        with fresh_redis() as broker:
            seconds = await add_events(broker.url, events)
        return {EVENTS: self.plain_entries / seconds}


def _event(index: int) -> bytes:
    return encode_tokens(index, (111,), "111 ")
