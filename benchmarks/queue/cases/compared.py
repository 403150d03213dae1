"""The queue beside the plain loop and other queues: bulk submit, drain, latency, token events."""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.board import Board, above, at_least, at_most, below
from benchmarks.queue.ours import Ours, OursSync, open_client, requests, start_worker, wait_ended
from benchmarks.queue.plain import Plain, add_events
from benchmarks.queue.stage import Contender, fresh_redis
from benchmarks.runner import AsyncCase, in_turn
from rose.protocol import encode_tokens

SUBMIT = "bulk submit, jobs/s"
DRAIN = "drain, jobs/s"
P50 = "submit to result, p50 ms"
P99 = "submit to result, p99 ms"
EVENTS = "log entries/s"
TOKENS = "tokens/s"
_SAME_EVENTS = "plain loop, our events"
_DRAIN_LIMIT_S = 300.0
_WARM_UP = 50


@dataclass(frozen=True, slots=True)
class Submit(AsyncCase):
    """Bulk submit: how fast a service gets its jobs into Redis."""

    jobs: int
    contenders: Sequence[Contender]
    title: str = "Bulk submit"

    async def measure(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            jobs = min(self.jobs, contender.max_jobs or self.jobs)
            with fresh_redis() as broker:
                seconds = await contender.submit(broker.url, jobs)
            board.add(contender.name, {SUBMIT: jobs / seconds})

    def judge(self, board: Board) -> None:
        for ours in (Ours.name, OursSync.name):
            rows = (SUBMIT, ours), (SUBMIT, Plain.name)
            board.check_ratio(f"{ours} to {Plain.name}", *rows, at_least(0.4))


@dataclass(frozen=True, slots=True)
class Drain(AsyncCase):
    """How fast one worker process gets through jobs that wait for it."""

    jobs: int
    contenders: Sequence[Contender]
    title: str = "Drain of one-token jobs, one worker process"

    async def measure(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            jobs = min(self.jobs, contender.max_jobs or self.jobs)
            board.add(contender.name, {DRAIN: await drain_rate(contender, jobs)})

    def judge(self, board: Board) -> None:
        for name in board.contenders(DRAIN):
            if name != Ours.name:
                target = at_least(0.4) if name == Plain.name else above(1)
                rows = (DRAIN, Ours.name), (DRAIN, name)
                board.check_ratio(f"{Ours.name} to {name}", *rows, target)


async def drain_rate(contender: Contender, jobs: int) -> float:
    """Jobs per second from the first finish to the last: the worker's start does not count."""
    with fresh_redis() as broker:
        await contender.enqueue(broker.url, jobs)
        with contender.worker(broker.url):
            async with asyncio.timeout(_DRAIN_LIMIT_S):
                times = await contender.finish_times(broker.url, jobs)
    return rate(times)


def rate(times: Sequence[float]) -> float:
    """The first ones ended together, after work that the clock has not seen: they do not count."""
    first, last = min(times), max(times)
    return sum(time > first for time in times) / (last - first)


@dataclass(frozen=True, slots=True)
class Latency(AsyncCase):
    """Submit to result, one job after another: what a caller waits when nobody else is there."""

    jobs: int
    contenders: Sequence[Contender]
    title: str = "Submit to result, one at a time"

    async def measure(self, board: Board, turn: int) -> None:
        for contender in in_turn(self.contenders, turn):
            with fresh_redis() as broker, contender.serving_worker(broker.url) as worker:
                worker.wait_ready()
                seconds = await contender.latencies(broker.url, _WARM_UP + self.jobs)
            cuts = statistics.quantiles(seconds[_WARM_UP:], n=100)
            board.add(contender.name, {P50: cuts[49] * 1000, P99: cuts[98] * 1000})

    def judge(self, board: Board) -> None:
        for name in board.contenders(P50):
            if name != Ours.name:
                target = at_most(3) if name == Plain.name else below(1)
                rows = (P50, Ours.name), (P50, name)
                board.check_ratio(f"p50: {Ours.name} to {name}", *rows, target)


@dataclass(frozen=True, slots=True)
class Tokens(AsyncCase):
    """Long jobs: how many token events a second get into the log."""

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
