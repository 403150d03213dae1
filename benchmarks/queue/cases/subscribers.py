"""Two thousand subscribers in one process, all of their jobs running at once."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import aclosing
from dataclasses import dataclass

import redis.asyncio

from benchmarks.board import Board, at_least
from benchmarks.queue.cases import AsyncCase
from benchmarks.queue.ours import Ours, open_client, requests, start_worker
from benchmarks.queue.plain import connect
from benchmarks.queue.stage import fresh_redis
from rose_producer import AsyncJob, TokenEvent

SERVED = "subscribers served exactly once"
CONNECTIONS = "their connections"
SECONDS = "s, first to last token"
EVENTS = "events delivered/s"
_TIMEOUT_S = 300.0
_POLL_S = 0.1
#: All have subscribed when no new channel has appeared for this long.
_QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class _Heard:
    """What one subscriber got."""

    tokens: int
    in_order: bool
    events: int
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Subscribers(AsyncCase):
    count: int
    new_tokens: int
    title: str = "Concurrent subscribers in one process"

    async def measure(self, board: Board, turn: int) -> None:  # noqa: ARG002 - one contender
        with (
            fresh_redis() as broker,
            start_worker(broker.url, max_batch_size=self.count) as worker,
        ):
            worker.wait_ready()
            async with connect(broker.url) as observer, open_client(broker.url) as client:
                others = await _connections(observer)
                worker.signal(signal.SIGSTOP)
                jobs = await client.submit_many(requests(self.count, self.new_tokens))
                listening = [asyncio.create_task(_listen(job)) for job in jobs]
                await _all_subscribed(observer)
                connections = await _connections(observer) - others
                worker.signal(signal.SIGCONT)
                heard = await asyncio.gather(*listening)
        board.add(Ours.name, self._figures(heard, connections))

    def judge(self, board: Board) -> None:
        board.check_every((SERVED, Ours.name), at_least(self.count))

    def _figures(self, heard: list[_Heard], connections: int) -> dict[str, float]:
        served = sum(one.in_order and one.tokens == self.new_tokens for one in heard)
        seconds = max(one.last for one in heard) - min(one.first for one in heard)
        return {
            SERVED: served,
            CONNECTIONS: connections,
            SECONDS: seconds,
            EVENTS: sum(one.events for one in heard) / seconds,
        }


async def _listen(job: AsyncJob) -> _Heard:
    tokens = events = 0
    in_order = True
    first = last = 0.0
    async with aclosing(job.stream(timeout_s=_TIMEOUT_S)) as stream:
        async for event in stream:
            last = time.perf_counter()
            first = first or last
            events += 1
            in_order = in_order and event.index == tokens
            if isinstance(event, TokenEvent):
                tokens += len(event.token_ids)
    return _Heard(tokens, in_order, events, first, last)


async def _all_subscribed(observer: redis.asyncio.Redis) -> None:
    channels, since = -1, time.monotonic()
    while time.monotonic() < since + _QUIET_S:
        now = len(await observer.pubsub_channels())
        if now != channels:
            channels, since = now, time.monotonic()
        await asyncio.sleep(_POLL_S)


async def _connections(observer: redis.asyncio.Redis) -> int:
    clients: int = (await observer.info("clients"))["connected_clients"]
    return clients
