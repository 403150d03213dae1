"""Long jobs: how many token events a second get into the log."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.board import Board, Figure
from benchmarks.queue.ours import Ours, open_client, requests, start_worker, wait_ended
from benchmarks.queue.plain import Plain, add_events
from benchmarks.queue.stage import fresh_redis
from benchmarks.turns import in_turn
from rose.protocol import encode_tokens

EVENTS = "log entries/s"
TOKENS = "tokens/s"
_SAME_EVENTS = "plain loop, our events"


@dataclass(frozen=True, slots=True)
class Tokens:
    jobs: int
    new_tokens: int
    plain: Plain
    plain_entries: int
    title: str = "Token events of long jobs"
    rounds: None = None

    async def round(self, board: Board, turn: int) -> None:
        for part in in_turn([self._plain_jobs, self._ours, self._plain_events], turn):
            board.add(await part())

    def judge(self, board: Board) -> None:
        for plain in (Plain.name, _SAME_EVENTS):
            for metric in (EVENTS, TOKENS):
                board.check_ratio(
                    f"{metric}: {Ours.name} to {plain}",
                    (metric, Ours.name),
                    (EVENTS, plain),
                    "at least 1",
                    lambda ratio: ratio >= 1,
                )

    async def _ours(self) -> list[Figure]:
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
        return [
            Figure(EVENTS, Ours.name, events / seconds),
            Figure(TOKENS, Ours.name, tokens / seconds),
        ]

    async def _plain_jobs(self) -> list[Figure]:
        with fresh_redis() as broker:
            seconds = await self.plain.submit(broker.url, self.plain_entries)
        return [Figure(EVENTS, Plain.name, self.plain_entries / seconds)]

    async def _plain_events(self) -> list[Figure]:
        """The same XADDs that our log consists of, one event a token."""
        events = [
            (f"plain:log:{n % self.jobs}", f"{n // self.jobs + 1}-0", _event(n // self.jobs))
            for n in range(self.plain_entries)
        ]
        with fresh_redis() as broker:
            seconds = await add_events(broker.url, events)
        return [Figure(EVENTS, _SAME_EVENTS, self.plain_entries / seconds)]


def _event(index: int) -> bytes:
    return encode_tokens(index, (111,), "111 ")
